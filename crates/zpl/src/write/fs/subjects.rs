//! What can be done with a file system, by subject: [`FsWriter`] itself is opened, begins transactions, knows the files in
//! memory and tells the intent log; all else is a method of a subject, which borrows the file system.
//!
//! A subject has no state. The methods stand with the code of their subject in the modules of [`crate::write`]; helpers that
//! one file uses are functions of that file.

use super::FsWriter;

/// Content of files: reads, writes, sizes, holes, allocation; the targets of symbolic links.
#[derive(Debug, Clone, Copy)]
pub struct FileData<'a> {
    pub(in crate::write) fs: &'a FsWriter,
}

/// Names: look-up, and creation, links, renames and removals of files.
#[derive(Debug, Clone, Copy)]
pub struct Directories<'a> {
    pub(in crate::write) fs: &'a FsWriter,
}

/// The delete queue: files without names, until they are freed.
#[derive(Debug, Clone, Copy)]
pub struct DeleteQueue<'a> {
    pub(in crate::write) fs: &'a FsWriter,
}

/// Attributes of files: mode, owners, times, flags, project.
#[derive(Debug, Clone, Copy)]
pub struct FileAttrs<'a> {
    pub(in crate::write) fs: &'a FsWriter,
}

/// Changes that the flags of files and directories forbid.
#[derive(Debug, Clone, Copy)]
pub struct Restrictions<'a> {
    pub(in crate::write) fs: &'a FsWriter,
}

/// Access control lists.
#[derive(Debug, Clone, Copy)]
pub struct Acls<'a> {
    pub(in crate::write) fs: &'a FsWriter,
}

/// Extended attributes.
#[derive(Debug, Clone, Copy)]
pub struct Xattrs<'a> {
    pub(in crate::write) fs: &'a FsWriter,
}

/// Quotas and usage of users, groups and projects.
#[derive(Debug, Clone, Copy)]
pub struct OwnerQuotas<'a> {
    pub(in crate::write) fs: &'a FsWriter,
}

/// Ranges of files that become references to the blocks of other files.
#[derive(Debug, Clone, Copy)]
pub struct Clones<'a> {
    pub(in crate::write) fs: &'a FsWriter,
}

/// Blocks written anew with the same bytes.
#[derive(Debug, Clone, Copy)]
pub struct Rewrites<'a> {
    pub(in crate::write) fs: &'a FsWriter,
}

/// Changes of the record size of files that exist.
#[derive(Debug, Clone, Copy)]
pub struct Reblocking<'a> {
    pub(in crate::write) fs: &'a FsWriter,
}

/// Records of the intent log that are done again.
#[derive(Debug, Clone, Copy)]
pub struct RecordReplay<'a> {
    pub(in crate::write) fs: &'a FsWriter,
}

impl FsWriter {
    /// Content of files: reads, writes, sizes, holes, allocation; the targets of symbolic links.
    #[inline]
    pub fn data(&self) -> FileData<'_> {
        FileData { fs: self }
    }

    /// Names: look-up, and creation, links, renames and removals of files.
    #[inline]
    pub fn dirs(&self) -> Directories<'_> {
        Directories { fs: self }
    }

    /// The delete queue: files without names, until they are freed.
    #[inline]
    pub fn delete_queue(&self) -> DeleteQueue<'_> {
        DeleteQueue { fs: self }
    }

    /// Attributes of files: mode, owners, times, flags, project.
    #[inline]
    pub fn attrs(&self) -> FileAttrs<'_> {
        FileAttrs { fs: self }
    }

    /// Changes that the flags of files and directories forbid.
    #[inline]
    pub fn restrictions(&self) -> Restrictions<'_> {
        Restrictions { fs: self }
    }

    /// Access control lists.
    #[inline]
    pub fn acls(&self) -> Acls<'_> {
        Acls { fs: self }
    }

    /// Extended attributes.
    #[inline]
    pub fn xattrs(&self) -> Xattrs<'_> {
        Xattrs { fs: self }
    }

    /// Quotas and usage of users, groups and projects.
    #[inline]
    pub fn quotas(&self) -> OwnerQuotas<'_> {
        OwnerQuotas { fs: self }
    }

    /// Ranges of files that become references to the blocks of other files.
    #[inline]
    pub fn clones(&self) -> Clones<'_> {
        Clones { fs: self }
    }

    /// Blocks written anew with the same bytes.
    #[inline]
    pub fn rewrites(&self) -> Rewrites<'_> {
        Rewrites { fs: self }
    }

    /// Changes of the record size of files that exist.
    #[inline]
    pub fn reblocking(&self) -> Reblocking<'_> {
        Reblocking { fs: self }
    }

    /// Records of the intent log that are done again.
    #[inline]
    pub fn replay(&self) -> RecordReplay<'_> {
        RecordReplay { fs: self }
    }
}
