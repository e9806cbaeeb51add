//! The intent log: its header, blocks and records.
//!
//! Differs from OpenZFS: nothing, faults included. A setattr's mask is read with the bits of illumos, whichever
//! system wrote it, and bytes of file data are printed as signed numbers.

use engine::zil;
use engine::zio::Form;
use ondisk::Blkptr;
use ondisk::zil::{Create, LogRecord, LrCommon, LrCreate, LrSetattr, Rename, TxType, Write};

use super::dump::{Done, Dump, ctime, out};
use super::view::View;

/// Prefix of each line about a record.
const TAB: &str = "\t\t\t";
/// Number of record types that zdb knows.
const TYPES: usize = 25;
/// Bytes of file data shown with `-ddddd`.
const SOME: usize = 20;

/// Prints the log: the header, with `-dd` records, with `-dddd` blocks, too.
pub fn print(dump: &mut Dump<'_>, view: &View) -> Done {
    let header = view.objset.phys.zil_header;
    let verbose = dump.log_verbosity();
    let snapshot = view.dataset.as_ref().is_some_and(|ds| ds.is_snapshot());
    if snapshot || header.log.is_hole() || verbose < 1 {
        return Ok(());
    }
    out!(
        dump,
        "\n    ZIL header: claim_txg {}, claim_blk_seq {}, claim_lr_seq {} replay_seq {}, flags {:#x}\n",
        header.claim_txg,
        header.claim_blk_seq,
        header.claim_lr_seq,
        header.replay_seq,
        header.flags
    );
    let checkpoint = dump.session.pool.uberblock.checkpoint_txg != 0;
    if verbose < 2 || (checkpoint && header.claim_txg == 0) {
        return Ok(());
    }
    out!(dump, "\n");
    let mut log = Log { view, claimed: header.claim_txg, verbose, counts: [0; TYPES], total: 0 };
    let form = if view.locked { Form::NoKey } else { view.objset.form() };
    let mut chain = zil::chain_as(&view.objset, form);
    loop {
        dump.poll()?;
        let Some(bp) = chain.peek() else { break };
        log.block(dump, &bp)?;
        let Some(block) = chain.next() else { break };
        for (head, record) in block.records() {
            log.record(dump, &head, record)?;
        }
    }
    log.stats(dump)
}

struct Log<'a> {
    view: &'a View,
    claimed: u64,
    verbose: u32,
    counts: [u64; TYPES],
    total: u64,
}

impl Log<'_> {
    fn will_claim(&self, dump: &Dump<'_>, bp: &Blkptr) -> bool {
        bp.accounting_birth() > dump.session.pool.uberblock.txg
    }

    fn block(&self, dump: &mut Dump<'_>, bp: &Blkptr) -> Done {
        if self.verbose <= 3 {
            return Ok(());
        }
        let claim = match self.claimed {
            0 if self.will_claim(dump, bp) => "will claim",
            0 => "won't claim",
            _ => "already claimed",
        };
        let [.., seq] = bp.checksum_words();
        let pointer = if self.verbose >= 5 { format!(", {bp}") } else { String::new() };
        out!(dump, "\tBlock seqno {seq}, {claim}{pointer}\n");
        Ok(())
    }

    fn record(
        &mut self,
        dump: &mut Dump<'_>,
        head: &LrCommon,
        record: engine::Result<LogRecord<'_>>,
    ) -> Done {
        let txtype = TxType(head.txtype);
        let folds = if txtype.is_case_insensitive() { "CI-" } else { "" };
        let name = name(usize::try_from(txtype.raw()).unwrap_or(usize::MAX));
        out!(dump, "\t\t{folds}{name:<19} len {:>6}, txg {}, seq {}\n", head.reclen, head.txg, head.seq);
        self.total += 1;
        let slot = usize::try_from(txtype.raw()).ok().filter(|&t| t > 0);
        if let Some(count) = slot.and_then(|t| self.counts.get_mut(t)) {
            *count += 1;
        }
        if self.verbose < 3 || txtype.raw() == TxType::COMMIT {
            return Ok(());
        }
        if is_encrypted(self.view) {
            out!(dump, "{TAB}(encrypted)\n");
            return Ok(());
        }
        match record {
            Ok(record) => self.body(dump, txtype, &record),
            Err(e) => {
                dump.problem(e);
                Ok(())
            }
        }
    }

    fn body(&self, dump: &mut Dump<'_>, txtype: TxType, record: &LogRecord<'_>) -> Done {
        match record {
            LogRecord::Create(r) => create(dump, txtype, r),
            LogRecord::CreateAcl(r) => named_create(dump, &r.lr, r.name),
            LogRecord::Remove(r) => text(dump, &format!("doid {}, name ", r.lr.doid), r.name),
            LogRecord::Link(r) => {
                text(dump, &format!("doid {}, link_obj {}, name ", r.lr.doid, r.lr.link_obj), r.name)
            }
            LogRecord::Rename(r) | LogRecord::RenameExchange(r) => rename(dump, r),
            LogRecord::RenameWhiteout(r) => {
                rename(dump, &r.rename)?;
                let w = &r.whiteout;
                let (foid, slots) = foid(w.wfoid);
                out!(dump, "{TAB}foid {foid}, slots {slots}, mode {:o}\n", w.wmode);
                out!(dump, "{TAB}uid {}, gid {}, gen {}, rdev {:#x}\n", w.wuid, w.wgid, w.wgen, w.wrdev);
                Ok(())
            }
            LogRecord::Write(r) => self.write(dump, r, true),
            LogRecord::Write2(r) => self.write(dump, r, false),
            LogRecord::Truncate(r) => {
                out!(dump, "{TAB}foid {}, offset 0x{:x}, length 0x{:x}\n", r.foid, r.offset, r.length);
                Ok(())
            }
            LogRecord::Setattr(r) => setattr(dump, &r.lr),
            LogRecord::Setsaxattr(r) => {
                out!(dump, "{TAB}foid {}\n", r.lr.foid);
                text(dump, "XAT_NAME  ", r.name)?;
                let value: &[u8] = if r.value.is_empty() { b"NULL" } else { r.value };
                text(dump, "XAT_VALUE ", value)
            }
            LogRecord::AclV0(r) => acl(dump, r.lr.foid, r.lr.aclcnt),
            LogRecord::Acl(r) => acl(dump, r.foid, r.lr.aclcnt),
            LogRecord::CloneRange(r) => {
                let lr = &r.lr;
                out!(dump, "{TAB}foid {}, offset {:x}, length {:x}", lr.foid, lr.offset, lr.length);
                out!(dump, ", blksize {:x}\n", lr.blksz);
                if self.verbose >= 5 {
                    for (i, bp) in r.bps.iter().enumerate() {
                        out!(dump, "{TAB}[{}/{}] {bp}\n", i + 1, r.bps.len());
                    }
                }
                Ok(())
            }
            LogRecord::Commit | LogRecord::Unknown(_) => Ok(()),
        }
    }

    fn write(&self, dump: &mut Dump<'_>, record: &Write<'_>, shows_data: bool) -> Done {
        let lr = &record.lr;
        out!(dump, "{TAB}foid {}, offset {:x}, length {:x}\n", lr.foid, lr.offset, lr.length);
        if !shows_data || self.verbose < 4 {
            return Ok(());
        }
        let wanted = if self.verbose < 6 { SOME } else { usize::MAX };
        let length = usize::try_from(lr.length).unwrap_or(usize::MAX).min(wanted);
        if let Some(bytes) = record.data {
            return if self.verbose >= 5 { data(dump, bytes, length) } else { Ok(()) };
        }
        let bp = &lr.blkptr;
        let claim = !bp.is_hole() && self.will_claim(dump, bp);
        out!(dump, "{TAB}has blkptr, {}\n", if claim { "will claim" } else { "won't claim" });
        if self.verbose < 5 {
            return Ok(());
        }
        out!(dump, "{TAB}{bp}\n");
        if bp.is_hole() {
            out!(dump, "{TAB}LSIZE {:#x}\n{TAB}<hole>\n", bp.lsize());
            return Ok(());
        }
        if bp.accounting_birth() < self.claimed {
            out!(dump, "{TAB}<block already committed>\n");
            return Ok(());
        }
        let read = zil::write_data(&self.view.objset, lr);
        let Some(block) = dump.read(read) else { return Ok(()) };
        data(dump, &block, length)
    }

    fn stats(&self, dump: &mut Dump<'_>) -> Done {
        if self.verbose > 3 {
            out!(dump, "\n");
        }
        if self.total == 0 {
            return Ok(());
        }
        let width = self.total.to_string().len();
        out!(dump, "\t\t{:<19} {:>width$}\n", "Total", self.total);
        for (i, count) in self.counts.iter().enumerate().skip(1) {
            if *count > 0 || self.verbose >= 3 {
                out!(dump, "\t\t{:<19} {count:>width$}\n", name(i));
            }
        }
        out!(dump, "\n");
        Ok(())
    }
}

/// zdb's name of a record type.
fn name(txtype: usize) -> String {
    let number = u64::try_from(txtype).unwrap_or(u64::MAX);
    match number {
        TxType::COMMIT => "Total".to_owned(),
        TxType::ACL => "TX_ACL_ACL".to_owned(),
        _ => format!("TX_{}", TxType(number).name()),
    }
}

fn is_encrypted(view: &View) -> bool {
    let dir = view.dataset.as_ref().and_then(|ds| Some((ds, ds.dir().ok()?)));
    dir.is_some_and(|(ds, dir)| matches!(ds.dsl.keys.root_of(&dir), Ok(Some(_))))
}

fn text(dump: &mut Dump<'_>, before: &str, bytes: &[u8]) -> Done {
    out!(dump, "{TAB}{before}");
    dump.out().write_all(bytes)?;
    out!(dump, "\n");
    Ok(())
}

/// Object and dnode slots in a record's object number.
fn foid(raw: u64) -> (u64, u64) {
    (raw & ((1 << 48) - 1), (raw >> 56) + 1)
}

fn create(dump: &mut Dump<'_>, txtype: TxType, record: &Create<'_>) -> Done {
    match (record.link, txtype.raw()) {
        (Some(link), _) => text(dump, "", &[record.name, b" -> ", link].concat())?,
        (None, TxType::MKXATTR) => {}
        (None, _) => text(dump, "", record.name)?,
    }
    created(dump, &record.lr)
}

fn named_create(dump: &mut Dump<'_>, lr: &LrCreate, name: &[u8]) -> Done {
    text(dump, "", name)?;
    created(dump, lr)
}

fn created(dump: &mut Dump<'_>, lr: &LrCreate) -> Done {
    let (foid, slots) = foid(lr.foid);
    out!(dump, "{TAB}{}\n", ctime(lr.crtime[0]));
    out!(dump, "{TAB}doid {}, foid {foid}, slots {slots}, mode {:o}\n", lr.doid, lr.mode);
    out!(dump, "{TAB}uid {}, gid {}, gen {}, rdev 0x{:x}\n", lr.uid, lr.gid, lr.r#gen, lr.rdev);
    Ok(())
}

fn rename(dump: &mut Dump<'_>, record: &Rename<'_>) -> Done {
    out!(dump, "{TAB}sdoid {}, tdoid {}\n", record.lr.sdoid, record.lr.tdoid);
    text(dump, "", &[b"src ", record.source, b" tgt ", record.target].concat())
}

fn acl(dump: &mut Dump<'_>, foid: u64, count: u64) -> Done {
    out!(dump, "{TAB}foid {foid}, aclcnt {count}\n");
    Ok(())
}

fn setattr(dump: &mut Dump<'_>, lr: &LrSetattr) -> Done {
    out!(dump, "{TAB}foid {}, mask 0x{:x}\n", lr.foid, lr.mask);
    if lr.mask & 0x2 != 0 {
        out!(dump, "{TAB}AT_MODE  {:o}\n", lr.mode);
    }
    let numbers = [(0x4, "AT_UID  ", lr.uid), (0x8, "AT_GID  ", lr.gid), (0x80, "AT_SIZE ", lr.size)];
    for (bit, name, value) in numbers {
        if lr.mask & bit != 0 {
            out!(dump, "{TAB}{name} {value}\n");
        }
    }
    for (bit, name, [sec, nsec]) in [(0x100, "AT_ATIME", lr.atime), (0x200, "AT_MTIME", lr.mtime)] {
        if lr.mask & bit != 0 {
            out!(dump, "{TAB}{name} {sec}.{nsec:09} {}\n", ctime(sec));
        }
    }
    Ok(())
}

/// File data: printable characters as they are, others as numbers.
fn data(dump: &mut Dump<'_>, bytes: &[u8], length: usize) -> Done {
    out!(dump, "{TAB}");
    for byte in bytes.iter().take(length) {
        if (0x20..0x7f).contains(byte) {
            out!(dump, "{} ", char::from(*byte));
        } else {
            out!(dump, "{:2X}", i32::from(byte.cast_signed()));
        }
    }
    out!(dump, "\n");
    Ok(())
}
