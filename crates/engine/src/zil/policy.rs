//! The properties of a log, and the placement of a write's data.
//!
//! A small write goes into the log with its data. A write of large whole blocks goes to its final location, and the
//! log points to it; so does every write with `logbias=throughput`. With dedicated log devices, all data go there,
//! because they are faster. Source: `zil_write_state`, zil.c, OpenZFS 2.3.

use super::itx::Itx;
use super::log::Zil;
use crate::dmu::Tx;
use crate::error::Result;

/// Block size above which writes of whole blocks are placed at once.
#[doc(alias = "zfs_immediate_write_sz")]
const IMMEDIATE: u64 = 32 << 10;
/// Maximum write whose data are copied when it is recorded.
#[doc(alias = "zil_maxcopied")]
const COPIED: u64 = 7680;

/// Property `sync`: the operations that are logged.
#[doc(alias = "zfs_sync_type_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum SyncMode {
    /// Operations whose commit callers request.
    #[default]
    Standard,
    /// Every operation before it returns.
    Always,
    /// None: a crash loses the last seconds, whatever callers requested.
    Disabled,
}

/// Property `logbias`: the optimization goal of synchronous writes.
#[doc(alias = "zfs_logbias_op_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LogBias {
    /// Low latency of each.
    #[default]
    Latency,
    /// High throughput of many: data are written once.
    Throughput,
}

/// The properties of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogPolicy {
    /// Property `sync`.
    pub(crate) sync: SyncMode,
    /// Property `logbias`.
    pub(crate) bias: LogBias,
}

impl LogPolicy {
    /// From the numbers of the properties `sync` and `logbias`.
    pub(crate) fn of(sync: u64, logbias: u64) -> Self {
        let sync = match sync {
            1 => SyncMode::Always,
            2 => SyncMode::Disabled,
            _ => SyncMode::Standard,
        };
        Self { sync, bias: if logbias == 1 { LogBias::Throughput } else { LogBias::Latency } }
    }
}

/// A completed write, with its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Written<'a> {
    /// The object.
    pub object: u64,
    /// Offset of the bytes.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Size of the object's blocks.
    pub block_size: u64,
    /// Every commit writes it, not only one of its object.
    pub sync: bool,
}

/// The placement of a write's data.
#[doc(alias = "itx_wr_state_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Copied,
    Read,
    Placed,
}

impl Zil {
    /// Sets the properties.
    pub fn set_policy(&self, policy: LogPolicy) {
        *self.policy.write() = policy;
    }

    /// The properties.
    pub fn policy(&self) -> LogPolicy {
        *self.policy.read()
    }

    fn form(&self, length: u64, block_size: u64) -> Form {
        let policy = self.policy();
        if policy.bias == LogBias::Throughput {
            return Form::Placed;
        }
        if length >= block_size && block_size > IMMEDIATE && !self.has_log_devices() {
            return Form::Placed;
        }
        match policy.sync == SyncMode::Always && length <= COPIED {
            true => Form::Copied,
            false => Form::Read,
        }
    }

    /// Records a write under `tx`.
    #[doc(alias("zfs_log_write", "zvol_log_write"))]
    pub fn log_write(&self, write: &Written<'_>, tx: &Tx) {
        let length = u64::try_from(write.data.len()).unwrap_or(u64::MAX);
        match self.form(length, write.block_size) {
            Form::Copied => {
                self.assign(Itx::write(write.object, write.offset, write.data).with_sync(write.sync), tx);
            }
            Form::Read => {
                self.assign(Itx::write_later(write.object, write.offset, length).with_sync(write.sync), tx);
            }
            Form::Placed => {
                let (size, end) = (write.block_size.max(1), write.offset.saturating_add(length));
                let mut at = write.offset;
                while at < end {
                    let next = (at / size + 1).saturating_mul(size).min(end);
                    let itx = Itx::write_placed(write.object, at, next - at);
                    self.assign(itx.with_sync(write.sync), tx);
                    at = next;
                }
            }
        }
    }

    /// An operation that changed `object` is complete: with `sync=always` it is committed. The caller must not hold
    /// a transaction.
    pub fn settle(&self, object: u64) -> Result<()> {
        match self.policy().sync == SyncMode::Always && !self.is_replaying() {
            true => self.commit(object),
            false => Ok(()),
        }
    }
}
