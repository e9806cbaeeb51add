//! `make install` and `make deb`, into folders of a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A script of `packaging`, with the binary of this build.
fn script(name: &str, args: &[&str], env: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(root().join("packaging").join(name));
    command.args(args).env("BINARY", env!("CARGO_BIN_EXE_aquifer")).env("DEB_COMPRESS", "-Zgzip -z1");
    command.envs(env.iter().copied());
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn ok(output: Output) -> String {
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

/// Everything below a folder that is no folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => all.extend(files(&entry.path())),
            false => all.push(entry.path()),
        }
    }
    all
}

/// The links act by their names; a word does as well.
fn links_act(bin: &Path) {
    let run = |name: &str, args: &[&str]| ok(Command::new(bin.join(name)).args(args).output().unwrap());
    for (name, about) in [
        ("zpool", "zpool command args"),
        ("zfs", "zfs command args"),
        ("zdb", "leak detection"),
        ("arcstat", "cache statistics"),
        ("arc_summary", "efficiency of the cache"),
    ] {
        let direct = run(name, &["--help"]);
        assert!(direct.contains(about) || direct.contains(&about.to_lowercase()), "{name}: {direct}");
        assert!(run("aquifer", &[name, "--help"]).contains(about), "aquifer {name}");
    }
    assert_eq!(run("zarcstat", &["-v"]), run("arcstat", &["-v"]));
    assert!(run("zfs", &["version"]).starts_with("zfs-2."));
    let refused = Command::new(bin.join("zdb")).arg("--no-such-option").output().unwrap();
    assert!(!refused.status.success());
    // A shell asks for completions.
    let asked = Command::new(bin.join("zpool"))
        .args(["--", "zpool", "stat"])
        .env("AQUIFER_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", "1")
        .env("_CLAP_IFS", "\n")
        .output()
        .unwrap();
    assert_eq!(ok(asked).trim(), "status");
}

#[test]
fn installed_commands_act_by_their_names_and_are_removed_again() {
    let dest = tempfile::tempdir().unwrap();
    let install = |action: &str| script("install.sh", &[action], &[("DESTDIR", dest.path())]);
    ok(install("install"));
    let prefix = dest.path().join("usr/local");
    links_act(&prefix.join("sbin"));
    for file in [
        "share/man/man8/zpool-create.8.gz",
        "share/man/man5/aquifer-settings.5.gz",
        "share/man/man7/zfsprops.7.gz",
        "share/bash-completion/completions/zfs",
        "share/zsh/site-functions/_zpool",
        "share/fish/vendor_completions.d/zdb.fish",
    ] {
        assert!(prefix.join(file).is_file(), "{file}");
    }
    // Zedlets, with the administrator's settings and a zedlet that is not ours.
    let zed = dest.path().join("etc/zfs/zed.d");
    assert_eq!(
        fs::read_link(zed.join("data-notify.sh")).unwrap(),
        Path::new("/usr/local/lib/aquifer/zed.d/notify.sh")
    );
    fs::write(zed.join("zed.rc"), "ZED_EMAIL_ADDR=me\n").unwrap();
    fs::remove_file(zed.join("all-syslog.sh")).unwrap();
    fs::write(zed.join("all-syslog.sh"), "theirs").unwrap();
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/aquifer.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/local/sbin/aquifer daemon --stay"), "{unit}");
    // An administrator's settings stay.
    let conf = dest.path().join("etc/aquifer/aquifer.conf");
    fs::write(&conf, "zfs_arc_max = 1G\n").unwrap();
    ok(install("install"));
    assert_eq!(fs::read_to_string(&conf).unwrap(), "zfs_arc_max = 1G\n");
    assert_eq!(fs::read_to_string(zed.join("zed.rc")).unwrap(), "ZED_EMAIL_ADDR=me\n");
    assert_eq!(fs::read_to_string(zed.join("all-syslog.sh")).unwrap(), "theirs");
    assert!(prefix.join("lib/aquifer/zed.d/notify.sh").is_file() && zed.join("data-notify.sh").is_symlink());
    ok(install("uninstall"));
    let mut left = files(dest.path());
    left.sort();
    assert_eq!(left, [conf, zed.join("all-syslog.sh"), zed.join("zed.rc")]);
}

#[test]
fn foreign_programs_are_not_overwritten() {
    let dest = tempfile::tempdir().unwrap();
    let theirs = dest.path().join("usr/local/sbin/zpool");
    fs::create_dir_all(theirs.parent().unwrap()).unwrap();
    fs::write(&theirs, "theirs").unwrap();
    let refused = script("install.sh", &["install"], &[("DESTDIR", dest.path())]);
    assert!(!refused.status.success() && text(&refused).contains("is not ours"), "{}", text(&refused));
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
    assert!(!theirs.with_file_name("zfs").exists());
}

#[test]
fn the_debian_package_leaves_an_installed_openzfs_alone() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no dpkg-deb here");
        return;
    }
    let out = tempfile::tempdir().unwrap();
    ok(script("deb.sh", &[], &[("OUT", out.path())]));
    let deb = files(out.path()).pop().unwrap();
    let listed = ok(Command::new("dpkg-deb").arg("-c").arg(&deb).output().unwrap());
    for path in [
        "./usr/lib/aquifer/bin/zpool -> aquifer",
        "./usr/sbin/aquifer -> ",
        "./usr/lib/systemd/system/aquifer.service",
        "./usr/lib/systemd/system/aquifer-zed.service",
        "./usr/lib/aquifer/zed.d/notify.sh",
        "./etc/aquifer/aquifer.conf",
    ] {
        assert!(listed.contains(path), "{path} is not in {listed}");
    }
    assert!(
        !["./usr/sbin/zpool", "./usr/share/man/man7/zfs", "./usr/share/man/man8/zpool.8"]
            .iter()
            .any(|theirs| listed.contains(theirs)),
        "{listed}"
    );

    // A machine that has another zpool already.
    let machine = tempfile::tempdir().unwrap();
    let theirs = machine.path().join("usr/sbin/zpool");
    for dir in ["usr/sbin", "var/lib/dpkg/info", "var/lib/dpkg/updates"] {
        fs::create_dir_all(machine.path().join(dir)).unwrap();
    }
    for file in ["var/lib/dpkg/status", "var/lib/dpkg/available"] {
        fs::write(machine.path().join(file), "").unwrap();
    }
    fs::write(&theirs, "theirs").unwrap();
    let dpkg = |args: &[&str]| {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", machine.path().display()));
        command.args(["--force-script-chrootless", "--force-depends", "--force-not-root"]).args(args);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        ok(command.output().unwrap())
    };
    dpkg(&["-i", deb.to_str().unwrap()]);
    links_act(&machine.path().join("usr/lib/aquifer/bin"));
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
    let link = |name: &str| fs::read_link(machine.path().join(name)).ok();
    assert_eq!(link("usr/sbin/zfs"), Some("/usr/lib/aquifer/bin/zfs".into()));
    assert_eq!(link("usr/share/man/man8/zfs.8.gz"), Some("/usr/lib/aquifer/share/man/man8/zfs.8.gz".into()));
    assert!(link("usr/share/man/man7/zfsprops.7.gz").is_some());
    assert_eq!(link("etc/zfs/zed.d/all-syslog.sh"), Some("/usr/lib/aquifer/zed.d/all-syslog.sh".into()));
    assert!(machine.path().join("etc/zfs/zed.d/zed.rc").is_file());
    dpkg(&["-r", "aquifer"]);
    assert_eq!(link("usr/share/man/man7/zfsprops.7.gz"), None);
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
    assert_eq!((link("usr/sbin/zfs"), link("usr/share/man/man8/zfs.8.gz")), (None, None));
    dpkg(&["-P", "aquifer"]);
    let left: Vec<_> = files(machine.path())
        .into_iter()
        .filter(|file| !file.starts_with(machine.path().join("var")))
        .collect();
    assert_eq!(left, [theirs]);
}

/// The words that a shell would offer behind a line, by its installed script.
fn completed(shell: &str, dir: &Path, line: &str) -> Vec<String> {
    let name = line.split(' ').next().unwrap();
    let script = match shell {
        "bash" => format!(
            "source '{0}/pages/bash/{name}'; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9\n\
             COMP_WORDS=($(sed 's/[=:]/ & /g' <<< \"$COMP_LINE\")); cur=${{COMP_LINE##*[ =:]}}\n\
             [ \"$cur\" ] || COMP_WORDS+=(''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             of=$(complete -p {name} | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
             $of {name} \"$cur\" ''; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            dir.display()
        ),
        "fish" => format!(
            "set fish_complete_path; source '{}/pages/fish/{name}.fish'; complete -C '{line}'",
            dir.display()
        ),
        _ => format!(
            "words=({line}); [[ '{line}' == *' ' ]] && words+=(''); CURRENT=${{#words}}\n\
             AQUIFER_COMPLETE=zsh _CLAP_IFS=$'\\n' _CLAP_COMPLETE_INDEX=$((CURRENT - 1)) \
             '{}/{name}' -- \"${{words[@]}}\"",
            dir.display()
        ),
    };
    let output = Command::new(shell).args(["-c", &script]).env("AQUIFER_RUN", dir.join("none")).output();
    let said = ok(output.unwrap());
    said.lines().map(|line| line.split(['\t', ':']).next().unwrap().to_owned()).collect()
}

#[test]
fn shells_complete_values_of_properties_and_words_of_vdevs() {
    let dir = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_aquifer"));
    for name in ["zpool", "zfs"] {
        std::os::unix::fs::symlink(program, dir.path().join(name)).unwrap();
    }
    let pages = dir.path().join("pages");
    let bindir = [std::ffi::OsStr::new("pages"), "--bindir".as_ref(), dir.path().as_ref(), pages.as_ref()];
    ok(Command::new(program).args(bindir).output().unwrap());
    for shell in ["bash", "zsh", "fish"] {
        if Command::new(shell).arg("--version").output().is_err() {
            eprintln!("SKIPPED: no {shell} here");
            continue;
        }
        for (line, wanted) in [
            ("zfs set compression=lz", &["lz4", "lzjb"][..]),
            ("zfs create -o atime=", &["off", "on"]),
            ("zfs get used,compressr", &["used,compressratio"]),
            ("zpool set failmode=c", &["continue"]),
            ("zpool set feature@draid=", &["disabled", "enabled"]),
            ("zpool create -O sync=a tank", &[]),
            ("zpool create tank raidz", &["raidz", "raidz1", "raidz2", "raidz3"]),
            ("zpool create tank a spec", &["special"]),
            ("zpool add tank ca", &["cache"]),
            ("zpool stat", &["status"]),
        ] {
            let mut words = completed(shell, dir.path(), line);
            words.retain(|word| !word.is_empty());
            // Bash replaces only the part behind the last `=`.
            let typed = line.rsplit(' ').next().unwrap();
            let lead = typed.split_once('=').map(|(name, _)| format!("{name}=")).unwrap_or_default();
            let mut words: Vec<_> = words.iter().map(|w| w.strip_prefix(&lead).unwrap_or(w)).collect();
            words.sort_unstable();
            assert_eq!(words, wanted, "{shell}: {line}");
        }
    }
}
