//! `zfs send` of golden pools compared with the streams that OpenZFS 2.3.2 made of them, and its messages.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that can't go on must say so"
)]

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};

use engine::dsl::props::resume::decode;
use nvpair::{NvList, NvValue};
use testkit::golden::{self, Golden};
use testkit::live::{Live, Run};
use testkit::streams::assert_same;

fn zfs_send(pool: &Golden, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer"));
    let place = format!("{}/.", pool.dir.display());
    command.args(["zfs", "send", "-d", &place]).args(words).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn streams_and_packages_are_openzfs_byte_for_byte() {
    let cases: [(&str, &[(&str, &[&str])]); 2] = [
        (
            "streams",
            &[
                ("full-a", &["tank/src@a"]),
                ("incr-a-b", &["-i", "@a", "tank/src@b"]),
                ("from-bookmark", &["-i", "#a", "tank/src@c"]),
                ("multi-a-c", &["-I", "@a", "tank/src@c"]),
                ("replicate-c", &["-R", "tank/src@c"]),
                ("props-b", &["-p", "tank/src@b"]),
                ("redacted", &["--redact", "book", "tank/src@a"]),
            ],
        ),
        ("encrypted", &[("raw-pass", &["-w", "tank/pass@s"])]),
    ];
    for (name, streams) in cases {
        let Some(pool) = golden::get(name) else { continue };
        for (file, words) in streams {
            let real = std::fs::read(pool.dir.join(format!("{file}.zstream"))).expect("a golden stream");
            let ours = zfs_send(&pool, words);
            assert!(ours.status.success(), "{file}: {}", text(&ours.stderr));
            assert!(ours.stdout == real, "{file} differs");
        }
    }
}

#[test]
fn sizes_and_refusals_are_in_openzfs_words() {
    let Some(pool) = golden::get("streams") else { return };
    let sizes = zfs_send(&pool, &["-nP", "-R", "tank/src@b"]);
    let lines = text(&sizes.stdout);
    let first: Vec<&str> = lines.lines().map(|line| line.rsplit_once('\t').unwrap().0).collect();
    let kid = ["full\ttank/src/kid@a", "incremental\ta\ttank/src/kid@b", "size"];
    assert_eq!(first, [&["full\ttank/src@a", "incremental\ta\ttank/src@b"][..], &kid].concat());
    // Where the space accounts do not suffice, the stream is counted: the length is exact then.
    let real = std::fs::metadata(pool.dir.join("redacted.zstream")).expect("a golden stream").len();
    let sizes = zfs_send(&pool, &["-nP", "--redact", "book", "tank/src@a"]);
    assert_eq!(text(&sizes.stdout), format!("full\ttank/src@a\t{real}\nsize\t{real}\n"));
    let cases: [(&[&str], &str); 8] = [
        (&["tank/src@nope"], "cannot open 'tank/src@nope': dataset does not exist"),
        (
            &["-i", "@b", "tank/src@a"],
            "warning: cannot send 'tank/src@a': not an earlier snapshot from the same fs",
        ),
        (
            &["-i", "#nope", "tank/src@a"],
            "warning: cannot send 'tank/src@a': incremental source (tank/src#nope) does not exist",
        ),
        (&["-w", "-d", "book", "tank/src@a"], "Error: raw sends may not be redacted."),
        (&["-I", "#a", "tank/src@b"], "Error: multiple snapshots cannot be sent from a bookmark."),
        (&["-R", "tank/src"], "Error: Unsupported flag with filesystem or bookmark."),
        (
            &["-X", "tank/src/kid", "tank/src@a"],
            "Cannot specify dataset exclusion (-X) on a non-recursive send.",
        ),
        (&["-d", "a", "tank/src@a"], "warning: cannot send 'tank/src@a': not a redaction bookmark"),
    ];
    for (words, said) in cases {
        let run = zfs_send(&pool, words);
        assert_eq!((run.status.code(), text(&run.stderr).trim_end()), (Some(1), said), "{words:?}");
        assert!(run.stdout.is_empty(), "{words:?}");
    }
}

/// The token of the golden pool's partly received dataset names the rest of `tank/src@a`.
/// Space and lengths since a bookmark are those since its snapshot, and stay so when snapshots go.
#[test]
fn sizes_since_a_bookmark_outlive_its_snapshot() {
    let Some(pool) = golden::get("streams") else { return };
    let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
    live.ok(&format!("zpool create -m none tank {}", live.disk("d", 256)));
    for stream in ["full-a", "multi-a-c"] {
        let file = File::open(pool.dir.join(format!("{stream}.zstream"))).unwrap();
        let done = live.command("zfs receive -u tank/x").stdin(file).output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        if stream == "full-a" {
            live.ok("zfs bookmark tank/x@a tank/x#a");
        }
    }
    let written = |since: &str, of: &str| live.ok(&format!("zfs get -Hpo value written{since} tank/x{of}"));
    let size = |since: &str, of: &str| {
        live.ok(&format!("zfs send -nP -i {since} tank/x{of}")).lines().last().unwrap().to_owned()
    };
    let ends = ["@b", "@c", ""];
    let by_snapshot = ends.map(|of| written("@a", of));
    assert_eq!(ends.map(|of| written("#a", of)), by_snapshot);
    assert_eq!(written("#a", "@a"), "-\n");
    let sizes = ["@b", "@c"].map(|of| size("@a", of));
    assert_eq!(["@b", "@c"].map(|of| size("#a", of)), sizes);
    live.ok("zfs destroy tank/x@a");
    assert_eq!(ends.map(|of| written("#a", of)), by_snapshot);
    assert_eq!(["@b", "@c"].map(|of| size("#a", of)), sizes);
    live.ok("zfs destroy tank/x@b");
    assert_eq!((written("#a", "@c"), written("#a", "")), (by_snapshot[1].clone(), by_snapshot[2].clone()));
    assert_eq!(size("#a", "@c"), sizes[1]);
    live.export_and_verify("tank");
}

#[test]
fn a_token_of_openzfs_names_the_rest() {
    let Some(pool) = golden::get("streams") else { return };
    let token = std::fs::read_to_string(pool.dir.join("resume-token.txt")).expect("a token");
    let run = zfs_send(&pool, &["-t", token.trim()]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let whole = std::fs::metadata(pool.dir.join("full-a.zstream")).expect("a golden stream").len();
    let rest = u64::try_from(run.stdout.len()).unwrap();
    assert!(rest > 1000 && rest < whole, "{rest} of {whole}");
    let bad = zfs_send(&pool, &["-t", "1-1-8-00000000"]);
    let said = "cannot resume send: resume token is corrupt (incorrect checksum)";
    assert_eq!((bad.status.code(), text(&bad.stderr).trim_end()), (Some(255), said));
}

/// A token with these values and the right checksum.
fn token(list: &NvList) -> String {
    let packed = list.encode_native().unwrap();
    let small = compress::compress(compress::Algorithm::Gzip, 6, &packed, packed.len() + 64).unwrap();
    let sum = checksum::fletcher::fletcher4(&small[..small.len() / 4 * 4], false)[0];
    let hex: String = small.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("1-{sum:x}-{:x}-{hex}", packed.len())
}

/// Whatever a token says that its checksum covers: it is refused in words, or its stream is, or the stream completes the
/// receive with what the sender has. A refused one leaves the interrupted receive as it is.
#[test]
fn forged_tokens_resume_nothing_else() {
    let Some(golden) = golden::get("streams") else { return };
    let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
    live.ok(&format!("zpool create -m none tank {}", live.disk("d", 512)));
    let (part, stream) = (live.disks().join("part"), live.disks().join("stream"));
    let fed = |line: &str, from: &Path| -> Run {
        live.command(line).stdin(File::open(from).unwrap()).output().unwrap().into()
    };
    let sent = |line: &str| -> Run {
        live.command(line).stdout(File::create(&stream).unwrap()).output().unwrap().into()
    };
    let whole = golden.dir.join("full-a.zstream");
    let real = std::fs::read(&whole).unwrap();
    std::fs::write(&part, &real[..real.len() / 3]).unwrap();
    for file in ["full-a", "multi-a-c"] {
        let run = fed("zfs receive -u tank/src", &golden.dir.join(format!("{file}.zstream")));
        assert_eq!(run.code, 0, "{}", run.err);
    }
    let interrupted = || {
        let run = fed("zfs receive -s -u tank/part", &part);
        assert!(run.err.contains("Partially received snapshot is saved."), "{}", run.err);
        decode(live.ok("zfs get -Ho value receive_resume_token tank/part").trim()).unwrap()
    };
    let list = interrupted();
    let guid =
        |name: &str| live.ok(&format!("zfs get -Hpo value guid {name}")).trim().parse::<u64>().unwrap();
    let (other, own) = (guid("tank/src@b"), guid("tank/src@a"));
    let with = |name: &str, value: NvValue| (name.to_owned(), Some(value));
    let number = |name: &str, value: u64| with(name, NvValue::Uint64(value));
    let text = |name: &str, value: &str| with(name, value.into());
    let flag = |name: &str| with(name, NvValue::Boolean);
    let long = "x".repeat(10_000);
    let changes = [
        number("object", 1 << 40),
        number("object", u64::MAX),
        number("object", 0),
        number("offset", 1 << 60),
        number("offset", u64::MAX),
        number("bytes", u64::MAX),
        number("toguid", other),
        number("toguid", 1),
        number("fromguid", own),
        number("fromguid", other),
        number("fromguid", 7),
        text("toname", "tank/src@b"),
        text("toname", "tank/src"),
        text("toname", "tank/part"),
        text("toname", "other/src@a"),
        text("toname", ""),
        text("toname", "@"),
        text("toname", "../../etc@a"),
        text("toname", &long),
        flag("rawok"),
        flag("embedok"),
        flag("compressok"),
        flag("largeblockok"),
        with("redact_snaps", NvValue::Uint64Array(vec![other])),
        with("redact_snaps", NvValue::Uint64Array(vec![7; 100_000])),
        with("book_redact_snaps", NvValue::Uint64Array(vec![other])),
        text("object", "2"),
        with("toguid", NvValue::Boolean),
        ("toguid".to_owned(), None),
        ("toname".to_owned(), None),
        ("object".to_owned(), None),
    ];
    let (mut refused, mut completed) = (0, 0);
    for (name, value) in &changes {
        let what = format!("{name}: {:.80}", format!("{value:?}"));
        let mut forged = list.clone();
        forged.remove(name.as_str());
        if let Some(value) = value {
            forged.add(name.as_str(), value.clone());
        }
        let token = token(&forged);
        // The estimate that goes with a dry run must end, too.
        let dry = live.run(&format!("zfs send -nvt {token}"));
        assert!(matches!(dry.code, 0 | 1 | 255), "{what}: {}", dry.err);
        let before = live.ok("zfs get -Ho value receive_resume_token tank/part");
        let run = sent(&format!("zfs send -t {token}"));
        let run = if run.code == 0 {
            fed("zfs receive -s -u tank/part", &stream)
        } else {
            assert!(matches!(run.code, 1 | 255) && run.err.lines().count() <= 2, "{what}: {}", run.err);
            run
        };
        if run.code != 0 {
            assert!(!run.err.is_empty() && !run.err.contains("panic"), "{what}: {}", run.err);
            assert_eq!(live.ok("zfs get -Ho value receive_resume_token tank/part"), before, "{what}");
            refused += 1;
            continue;
        }
        let again = sent("zfs send tank/part@a");
        assert_eq!(again.code, 0, "{what}: {}", again.err);
        assert_same(&std::fs::read(&stream).unwrap(), &real);
        completed += 1;
        live.ok("zfs destroy -r tank/part");
        assert_eq!(interrupted(), list, "{what}");
    }
    assert!(refused > 15 && completed > 3, "{refused} and {completed}");
    assert_eq!(sent(&format!("zfs send -t {}", token(&list))).code, 0);
    assert_eq!(fed("zfs receive -u tank/part", &stream).code, 0);
    live.export_and_verify("tank");
}

/// The output of a tool for streams with one on its standard input, and its error output.
fn piped(mut tool: Command, words: &[&str], stream: &Path) -> (Vec<u8>, String) {
    let run = tool.args(words).stdin(File::open(stream).unwrap()).output().expect("it runs");
    (run.stdout, text(&run.stderr))
}

/// `zstream` makes the same of golden streams as OpenZFS's, where that is installed.
#[test]
fn the_tools_for_streams_are_openzfs_byte_for_byte() {
    let ours = || {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_aquifer"));
        tool.arg("zstream");
        tool
    };
    let is_installed = |name: &&str| Command::new(name).arg("help").output().is_ok();
    let tools: Vec<&str> = ["zstream", "zstream-2.4"].into_iter().filter(is_installed).collect();
    let Some(newest) = tools.last() else {
        eprintln!("SKIPPED: OpenZFS's zstream is not installed");
        return;
    };
    for name in ["streams", "raw-received", "encrypted"] {
        let Some(pool) = golden::get(name) else { continue };
        let files = std::fs::read_dir(&pool.dir).unwrap().map(|entry| entry.unwrap().path());
        let streams = files.filter(|path| path.extension().is_some_and(|end| end == "zstream"));
        for path in streams {
            for words in [&["dump"][..], &["dump", "-v"]] {
                let have = piped(ours(), words, &path);
                for tool in &tools {
                    assert!(have == piped(Command::new(tool), words, &path), "{tool} {words:?} {path:?}");
                }
            }
        }
    }
    let Some(pool) = golden::get("streams") else { return };
    let (packed, package) = (pool.dir.join("full-b-Lec.zstream"), pool.dir.join("multi-a-c.zstream"));
    let dump = text(&piped(ours(), &["dump", "-v"], &packed).0);
    let number = |line: &str, name: &str| {
        let rest = line.split_once(&format!("{name} = ")).unwrap().1;
        rest.split_whitespace().next().unwrap().to_owned()
    };
    let is_packed = |line: &&str| line.starts_with("WRITE object") && !line.contains("compression type = 0");
    let block = dump.lines().find(is_packed).expect("a compressed block");
    let block = format!("{},{}", number(block, "object"), number(block, "offset"));
    let cases: [(&[&str], &Path); 4] = [
        (&["recompress", "off"], &packed),
        (&["recompress", "off"], &package),
        (&["decompress", &block], &packed),
        (&["decompress", &block], &package),
    ];
    for (words, path) in cases {
        let have = piped(ours(), words, path).0;
        assert!(
            have.len() > 100_000 && have == piped(Command::new(newest), words, path).0,
            "{words:?} {path:?}"
        );
    }
    // A package with deduplicated blocks.
    let suite = Path::new("/usr/share/zfs/zfs-tests/tests/functional/rsend/dedup.zsend.bz2");
    let Ok(stream) = Command::new("bzcat").arg(suite).output() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &stream.stdout).unwrap();
    let words = ["redup", file.path().to_str().unwrap()];
    let have = piped(ours(), &words, file.path()).0;
    assert!(have == piped(Command::new(newest), &words, file.path()).0, "redup");
}

#[test]
fn excluded_datasets_are_left_out() {
    let Some(pool) = golden::get("streams") else { return };
    let run = zfs_send(&pool, &["-nP", "-R", "-X", "tank/src/kid", "tank/src@c"]);
    let lines = text(&run.stdout);
    assert!(run.status.success() && lines.contains("tank/src@c") && !lines.contains("kid"), "{lines}");
    // The list at the head names it nevertheless, as OpenZFS's does.
    let real = std::fs::read(pool.dir.join("replicate-c.zstream")).expect("a golden stream");
    let ours = zfs_send(&pool, &["-R", "-X", "tank/src/kid", "tank/src@c"]).stdout;
    let payload =
        real.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes).expect("a record");
    let head = ondisk::drr::DRR_SIZE + usize::try_from(payload).expect("a length");
    assert!(ours.len() < real.len() && ours.get(..head) == real.get(..head));
}
