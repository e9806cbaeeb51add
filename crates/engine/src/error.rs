//! One flat error: a kind to match on, a location, a message, a source.

use std::fmt;

use crate::types::Bookmark;

/// The result of everything in the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of failure, errno-shaped where an errno exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// No such object, name, attribute, pool or dataset.
    NotFound,
    /// An invalid argument.
    Invalid,
    /// The device refused or lost a request.
    Io,
    /// No copy of a block matches its checksum.
    Checksum,
    /// Bytes with a good checksum (or a header without one) that contradict the format.
    Corrupt,
    /// A feature, version, algorithm or structure that this build does not support.
    Unsupported,
    /// The dataset is encrypted and its key is not loaded.
    KeyMissing,
    /// The given key does not open the dataset.
    KeyWrong,
    /// A required device is absent.
    NoDevice,
    /// The path's parent is not a directory.
    NotDirectory,
    /// A directory where a file was expected.
    IsDirectory,
    /// Too many symbolic links, or a structure that contains itself.
    Loop,
    /// A name or value that is too long.
    TooLong,
    /// The user asked to stop.
    Interrupted,
    /// The operation would write, and this is read-only.
    ReadOnly,
    /// A limit on memory or work was reached.
    Limit,
    /// It is in use.
    Busy,
    /// It cannot be done in this transaction group, but in the next.
    #[doc(alias = "EAGAIN")]
    Again,
    /// Permission denied.
    Denied,
    /// The file's own flags or its type forbid it.
    NotPermitted,
    /// The directory has entries.
    NotEmpty,
    /// A name is not UTF-8 where it must be.
    NotUtf8,
    /// The maximum file size is exceeded.
    TooLarge,
    /// The two locations cannot share a file: it would have to be copied.
    OtherDevice,
    /// No space is left.
    NoSpace,
    /// Space is left, but in segments that are too small.
    Fragmented,
    /// A quota or limit that the administrator set is reached.
    Quota,
    /// The name or number is already in use.
    Exists,
    /// The pool is suspended: nothing can be written for now.
    Suspended,
}

/// The location of the failure; each known part is filled in on the way up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorPlace {
    /// Pool name.
    pub(crate) pool: Option<String>,
    /// Vdev path or name.
    pub(crate) vdev: Option<String>,
    /// Dataset name.
    pub dataset: Option<String>,
    /// The block, in the pool's tree.
    pub(crate) block: Option<Bookmark>,
    /// Byte offset, of the device or the object according to the message.
    pub(crate) offset: Option<u64>,
}

#[derive(Debug, Clone)]
struct Inner {
    kind: Kind,
    what: String,
    place: ErrorPlace,
    source: Option<Error>,
}

/// An error of the engine. Cheap to move; built once, enriched with its location on the way up.
#[derive(Debug, Clone)]
pub struct Error(Box<Inner>);

impl Error {
    /// A new error; `what` is a message without the location, in lower case, that includes the next step if it is
    /// not obvious.
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, what: what.into(), place: ErrorPlace::default(), source: None }))
    }

    /// Whether stored data could not be read: a device failed, or no copy of a block is intact.
    pub(crate) fn is_damage(&self) -> bool {
        let is_stored = self.place().block.is_some();
        matches!(self.kind(), Kind::Io | Kind::Checksum) || self.kind() == Kind::Corrupt && is_stored
    }

    /// Bytes that contradict the format.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, what)
    }

    /// A missing object.
    pub fn not_found(what: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, what)
    }

    /// An object that this build does not support.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, what)
    }

    /// The kind to match on.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The message, without location and source.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// The known parts of the location.
    pub fn place(&self) -> &ErrorPlace {
        &self.0.place
    }

    /// The error, its cause, the cause's cause, and so on.
    pub fn causes(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |e| e.0.source.as_ref())
    }

    /// Adds the pool's name.
    #[must_use]
    pub fn in_pool(mut self, pool: &str) -> Self {
        self.0.place.pool.get_or_insert_with(|| pool.to_owned());
        self
    }

    /// Adds the vdev's name.
    #[must_use]
    pub fn on_vdev(mut self, vdev: &str) -> Self {
        self.0.place.vdev.get_or_insert_with(|| vdev.to_owned());
        self
    }

    /// Adds the dataset's name.
    #[must_use]
    pub fn in_dataset(mut self, dataset: &str) -> Self {
        self.0.place.dataset.get_or_insert_with(|| dataset.to_owned());
        self
    }

    /// Adds the block.
    #[must_use]
    pub fn at_block(mut self, block: Bookmark) -> Self {
        self.0.place.block.get_or_insert(block);
        self
    }

    /// Adds a byte offset.
    #[must_use]
    pub(crate) fn at_offset(mut self, offset: u64) -> Self {
        self.0.place.offset.get_or_insert(offset);
        self
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn because(mut self, source: Error) -> Self {
        self.0.source = Some(source);
        self
    }
}

impl fmt::Display for ErrorPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sep = "";
        let mut part = |f: &mut fmt::Formatter<'_>, name: &str, value: &dyn fmt::Display| {
            write!(f, "{sep}{name} {value}")?;
            sep = ", ";
            fmt::Result::Ok(())
        };
        if let Some(pool) = &self.pool {
            part(f, "pool", pool)?;
        }
        if let Some(vdev) = &self.vdev {
            part(f, "vdev", vdev)?;
        }
        if let Some(dataset) = &self.dataset {
            part(f, "dataset", dataset)?;
        }
        if let Some(b) = &self.block {
            part(f, "objset", &b.objset)?;
            part(f, "object", &b.object)?;
            part(f, "level", &b.level)?;
            part(f, "block", &b.blkid)?;
        }
        if let Some(offset) = &self.offset {
            part(f, "offset", offset)?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.what)?;
        let place = self.0.place.to_string();
        if !place.is_empty() {
            write!(f, " ({place})")?;
        }
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|e| e as _)
    }
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        let kind = match e.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            std::io::ErrorKind::PermissionDenied => Kind::Denied,
            _ => Kind::Io,
        };
        Self::new(kind, e.to_string())
    }
}
