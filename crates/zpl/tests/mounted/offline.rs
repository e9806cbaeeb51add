//! A pool that was not exported, read without an import: files are as their last fsync left them, and nothing is written.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use engine::env::Env;
use engine::spa::OpenOptions;
use zpl::{FileKind, Filesystem, Inode};

use super::Seen;

fn see(dir: &Inode, at: &str, all: &mut BTreeMap<String, Seen>) {
    for entry in dir.entries().unwrap() {
        let entry = entry.unwrap();
        let path = format!("{at}/{}", String::from_utf8_lossy(&entry.name));
        let inode = dir.child(&entry.name).unwrap();
        let attr = inode.attr();
        assert_eq!((inode.number(), Some(attr.kind)), (entry.object, entry.kind));
        let data = match attr.kind {
            FileKind::Regular => content(&inode),
            FileKind::Symlink => inode.readlink().unwrap(),
            _ => Vec::new(),
        };
        let seen = Seen {
            object: entry.object,
            mode: attr.mode().into(),
            uid: attr.uid,
            gid: attr.gid,
            links: attr.links,
            size: attr.size,
            flags: attr.flags,
            project: attr.projid,
            crtime: attr.crtime,
            data,
            xattrs: inode.xattrs().unwrap().into_iter().collect(),
            acl: inode.acl().unwrap().unwrap().aces,
        };
        if inode.is_dir() {
            see(&inode, &path, all);
        }
        all.insert(path, seen);
    }
}

/// The bytes of a file; each way to read them finds the same.
fn content(file: &Inode) -> Vec<u8> {
    let size = file.attr().size as usize;
    let [mut data, mut lossy, mut spans] = [(); 3].map(|()| vec![0; size]);
    assert_eq!(file.read_at(0, &mut data).unwrap(), size);
    let (len, bad) = file.read_lossy(0, &mut lossy).unwrap();
    assert!(len == size && bad.is_empty() && lossy == data);
    let mut at = 0;
    while let Some(span) = file.span(at, u64::MAX).unwrap() {
        let range = span.range();
        let part = range.start as usize..range.end as usize;
        if matches!(span, zpl::Span::Data(_)) {
            spans[part.clone()].copy_from_slice(&data[part]);
        }
        at = range.end;
    }
    assert!(at as usize == size && spans == data, "what is not in a span is zeros");
    data
}

fn images(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.to_string_lossy().into_owned(), std::fs::read(path).unwrap())).collect()
}

fn set_mode(dir: &Path, mode: u32) {
    for path in images(dir).into_keys() {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// The root file system on the images in `dir`, which are read only meanwhile, and how many records of its log that takes.
pub(super) fn tree(dir: &Path) -> (BTreeMap<String, Seen>, u64) {
    let before = images(dir);
    set_mode(dir, 0o400);
    let mut all = BTreeMap::new();
    let applied = {
        let env = Env::system(32 << 20).unwrap();
        let dirs = [dir.to_owned()];
        let pool = zutil::import::open_pool(&env, &dirs, "wpool", OpenOptions::default()).unwrap();
        let fs: Arc<Filesystem> = Filesystem::open(&pool.dsl.dataset("wpool").unwrap()).unwrap();
        see(&fs.root().unwrap(), "", &mut all);
        let replayed = fs.replayed().cloned().unwrap_or_default();
        assert!(replayed.notes.is_empty(), "{:?}", replayed.notes);
        replayed.applied
    };
    assert!(before == images(dir), "reading has changed the pool");
    set_mode(dir, 0o600);
    (all, applied)
}
