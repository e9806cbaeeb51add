//! A sentence or two on each property, for the pages that are made from the tables of properties.

use zcommon::props::{VdevProp, ZfsProp, ZpoolProp};

/// What a property of a dataset means; empty for hidden ones.
pub fn of_dataset(prop: ZfsProp) -> &'static str {
    use ZfsProp as P;
    match prop {
        P::Type => "The kind of the dataset.",
        P::Creation => "When the dataset was created; with -p in seconds since 1970.",
        P::Used => {
            "Space that the dataset and everything below it take, snapshots and reservations included. It is freed when the dataset is destroyed with -r."
        }
        P::Available => {
            "Space that can still be written to the dataset: the least of what the pool has and what quotas leave, with reservations taken into account."
        }
        P::Referenced => {
            "Space of the blocks that the dataset itself refers to, whether or not it shares them with snapshots and clones."
        }
        P::Compressratio => {
            "How well the data of the dataset and of everything below it is compressed: logical size by size on disk."
        }
        P::Mounted => "Whether the file system is mounted.",
        P::Origin => "The snapshot that a clone was made of.",
        P::Quota => {
            "The most space that the file system and everything below it, snapshots included, may take."
        }
        P::Reservation => {
            "Space that is set aside for the dataset and everything below it; the parent counts it as used."
        }
        P::Volsize => "The size of the volume. Unless it is sparse, changing it changes refreservation, too.",
        P::Volblocksize => "The block size of the volume, which is fixed when it is created.",
        P::Recordsize => {
            "The largest block of files that are written from now on. Values above 128K need the feature large_blocks; up to 16M."
        }
        P::Mountpoint => {
            "Where the file system is mounted. Those below inherit it with their names appended. legacy leaves mounting to mount(8) and fstab(5); none mounts nowhere."
        }
        P::Sharenfs => {
            "How the file system is shared over NFS. This build keeps the value and shares nothing; zpool status names such datasets."
        }
        P::Checksum => {
            "The checksum of blocks that are written from now on. on means fletcher4. Metadata always has a checksum."
        }
        P::Compression => {
            "How blocks that are written from now on are compressed. on means lz4 where the pool has the feature lz4_compress, else lzjb."
        }
        P::Atime => "Whether reading a file sets its access time.",
        P::Devices => "Whether device nodes of the file system can be opened.",
        P::Exec => "Whether programs of the file system can be executed.",
        P::Setuid => "Whether set-user-id and set-group-id bits of the file system take effect.",
        P::Readonly => "Whether the dataset refuses changes.",
        P::Zoned => "Whether the dataset is managed by a container. It is kept and has no effect here.",
        P::Snapdir => {
            "Whether .zfs is listed in the root directory of the file system. hidden does not list it, but it can be entered; disabled removes it."
        }
        P::Aclmode => "What chmod(2) does to an NFSv4 access control list.",
        P::Aclinherit => "Which entries of an NFSv4 access control list new files inherit.",
        P::Createtxg => {
            "The transaction group in which the dataset was created. It orders snapshots and bookmarks."
        }
        P::Canmount => {
            "Whether the file system can be mounted. noauto mounts it only when it is named; off never, while those below still inherit its mount point."
        }
        P::Xattr => {
            "Where extended attributes are kept: sa in the file's dnode, where that has room, dir in a hidden directory. on means sa."
        }
        P::Copies => "How many copies of each block are written, beside the redundancy of the vdevs.",
        P::Version => "The version of the file system's format.",
        P::Normalization => {
            "How names are normalized before they are compared. It is fixed at creation and implies utf8only."
        }
        P::Utf8only => "Whether names must be valid UTF-8. It is fixed at creation.",
        P::Casesensitivity => {
            "Whether names that differ in case only name different files. It is fixed at creation."
        }
        P::Vscan => {
            "Whether files are scanned for viruses. It is kept for other systems and has no effect here."
        }
        P::Nbmand => {
            "Whether mandatory locks are honoured. It is kept for other systems and has no effect here."
        }
        P::Sharesmb => {
            "How the file system is shared over SMB. This build keeps the value and shares nothing; zpool status names such datasets."
        }
        P::Refquota => {
            "The most space that the dataset itself may refer to, without snapshots and what is below it."
        }
        P::Refreservation => {
            "Space that is set aside for the dataset itself, without snapshots and what is below it. auto of a volume is what its full size needs."
        }
        P::Guid => "A number that names the dataset for life, also in streams.",
        P::Primarycache => "What of the dataset is kept in memory.",
        P::Secondarycache => "What of the dataset may go to cache devices.",
        P::Usedbysnapshots => "Space that destroying all snapshots of the dataset would free.",
        P::Usedbydataset => {
            "Space that destroying the dataset itself would free, without snapshots and reservation."
        }
        P::Usedbychildren => "Space that destroying everything below the dataset would free.",
        P::Usedbyrefreservation => "Space that removing the refreservation would free.",
        P::DeferDestroy => "Whether the snapshot goes as soon as its last hold and clone are gone.",
        P::Userrefs => "How many holds the snapshot has.",
        P::Logbias => {
            "latency writes synchronous changes to the log first; throughput writes their data to its final place at once."
        }
        P::Objsetid => "The number of the dataset's object set in its pool.",
        P::Dedup => {
            "Whether blocks that the pool has already are stored once. This build frees deduplicated blocks rightly and deduplicates no new ones; zpool status names such datasets."
        }
        P::Mlslabel => "A sensitivity label of another system; it can't be set here.",
        P::Sync => {
            "standard writes what a program asks to be synchronous before it returns; always does so for every change; disabled never does, and a power cut then costs the last seconds."
        }
        P::Dnodesize => {
            "The size of dnodes of new files. Larger ones hold more extended attributes; they need the feature large_dnode."
        }
        P::Refcompressratio => "As compressratio, of what the dataset itself refers to.",
        P::Written => {
            "Space that was written since the previous snapshot. written@SNAPSHOT and written#BOOKMARK count since that one."
        }
        P::Clones => "The clones of the snapshot.",
        P::Logicalused => "As used, before compression and copies.",
        P::Logicalreferenced => "As referenced, before compression and copies.",
        P::Volmode => "How the volume is shown as a device. Here volumes are files in mounts.",
        P::FilesystemLimit => {
            "How many datasets there may be below this one. Privileged users are not limited."
        }
        P::SnapshotLimit => {
            "How many snapshots there may be of the dataset and below it. Privileged users are not limited."
        }
        P::FilesystemCount => {
            "How many datasets there are below this one; counted once a limit stands somewhere above."
        }
        P::SnapshotCount => {
            "How many snapshots there are at and below this dataset; counted once a limit stands somewhere above."
        }
        P::Snapdev => "Whether devices of a volume's snapshots are shown.",
        P::Acltype => {
            "Which access control lists files have: posix, or none. nfsv4 lists are kept on disk and not enforced on Linux."
        }
        P::Context => "The SELinux label of all files of the mount.",
        P::Fscontext => "The SELinux label of the file system.",
        P::Defcontext => "The SELinux label of files that have none.",
        P::Rootcontext => "The SELinux label of the root directory.",
        P::Relatime => {
            "Whether access times are set only when they are older than the last change, or than a day. It counts while atime is on."
        }
        P::RedundantMetadata => {
            "How much metadata gets an additional copy: all of it, most, some, or only what the pool needs."
        }
        P::Overlay => "Whether the file system may be mounted on a directory that is not empty.",
        P::ReceiveResumeToken => "A token with which an interrupted receive can go on.",
        P::Encryption => {
            "The cipher of the dataset. It is fixed at creation; everything below an encrypted dataset is encrypted."
        }
        P::Keylocation => "Where the key is: prompt asks for it, a URI names a file or a server.",
        P::Keyformat => {
            "The form of the key: 32 bytes (raw), 64 hexadecimal digits, or a passphrase of 8 to 512 bytes."
        }
        P::Pbkdf2iters => {
            "How many rounds turn a passphrase into a key. More rounds make guessing and loading slower."
        }
        P::Encryptionroot => "The dataset whose key this one uses.",
        P::Keystatus => "Whether the key is loaded.",
        P::SpecialSmallBlocks => "Blocks up to this size go to special vdevs; 0 sends metadata only.",
        P::RedactSnaps => "The snapshots that the dataset or bookmark was redacted for.",
        P::SnapshotsChanged => "When a snapshot of the dataset was last made or destroyed.",
        P::Prefetch => "What is read ahead: data and metadata, metadata only, or nothing.",
        P::Volthreading => {
            "Whether requests to the volume are spread over threads, where it is a device of the kernel's OpenZFS."
        }
        P::Direct => {
            "What O_DIRECT does: standard honours it, always acts as if it was given, disabled ignores it."
        }
        P::Longname => "Whether names may be up to 1023 bytes long. It needs the feature longname.",
        _ => "",
    }
}

/// What a property of a pool means; empty for hidden ones.
pub fn of_pool(prop: ZpoolProp) -> &'static str {
    use ZpoolProp as P;
    match prop {
        P::Size => "The size of the pool, parity of raidz and draid included.",
        P::Capacity => "How much of the pool is allocated, in percent.",
        P::Altroot => {
            "A folder that all mount points are below, for as long as the pool is imported. It is set at creation or import."
        }
        P::Health => "The state of the pool.",
        P::Guid => "A number that names the pool.",
        P::Version => "The version of the pool's format, 1 to 28; a pool with feature flags shows -.",
        P::Bootfs => "The dataset that a boot loader boots.",
        P::Delegation => "Whether permissions can be delegated with zfs allow.",
        P::Autoreplace => "Whether a new device in the place of a failed one is taken for it.",
        P::Cachefile => "The file that notes the pool for the next start; none notes it nowhere.",
        P::Failmode => {
            "What happens when the pool can't write any more. This build returns an error to callers and goes on after zpool clear, whichever is set."
        }
        P::Listsnapshots => "Whether zfs list without -t shows snapshots.",
        P::Autoexpand => "Whether the pool grows when its devices do.",
        P::Dedupratio => "How much deduplication saves: logical size by size on disk.",
        P::Free => "Space that is not allocated.",
        P::Allocated => "Space that is allocated.",
        P::Readonly => "Whether the pool was imported read-only. It is set at import.",
        P::Ashift => "The sector size of vdevs that are added, as a power of two; 0 asks the devices.",
        P::Comment => "Text of up to 32 printable characters, kept in the labels.",
        P::Expandsize => "Space of the devices that the pool does not use yet; zpool online -e takes it.",
        P::Freeing => "Space of destroyed datasets that is still to be freed in the background.",
        P::Fragmentation => "How much the free space is in pieces, in percent.",
        P::Leaked => "Space that could not be freed because of damage.",
        P::Multihost => "Whether the pool is kept from being imported by two machines at once.",
        P::Checkpoint => "Space that the checkpoint keeps.",
        P::LoadGuid => "A number of this import; it differs at the next one.",
        P::Autotrim => "Whether freed space is trimmed on devices that can do it.",
        P::Compatibility => "Files that list the features which may be enabled; off allows all, legacy none.",
        P::Bcloneused => "Space of cloned blocks on disk.",
        P::Bclonesaved => "Space that cloned blocks did not take a second time.",
        P::Bcloneratio => "How much cloning saves: size without it by size with it.",
        P::DedupTableSize => "The size of the dedup tables.",
        P::DedupTableQuota => "The most that the dedup tables may take; auto is the size of the dedup vdevs.",
        P::LastScrubbedTxg => "The last transaction group that a scrub covered completely.",
        _ => "",
    }
}

/// What a property of a vdev means; empty for hidden ones.
pub fn of_vdev(prop: VdevProp) -> &'static str {
    use VdevProp as P;
    match prop {
        P::Capacity => "How much of it is allocated, in percent.",
        P::State => "Its state.",
        P::Guid => "A number that names it.",
        P::Asize => "Its usable size.",
        P::Psize => "The size of its devices.",
        P::Ashift => "Its sector size, as a power of two.",
        P::Size => "Its size.",
        P::Free => "Space that is not allocated.",
        P::Allocated => "Space that is allocated.",
        P::Comment => "Text of the administrator's.",
        P::Expandsize => "Space of its devices that is not used yet.",
        P::Fragmentation => "How much its free space is in pieces, in percent.",
        P::Bootsize => "The size of its boot partition.",
        P::Parity => "How many devices of it may fail.",
        P::Path => "The device's path.",
        P::Devid => "The device's identity.",
        P::Physpath => "Where the device is attached.",
        P::Encpath => "Where the device's slot stands in its enclosure.",
        P::Fru => "The part to order for it.",
        P::Parent => "The vdev above it.",
        P::Children => "The vdevs below it.",
        P::Numchildren => "How many vdevs are directly below it.",
        P::ReadErrors => "Reads that failed.",
        P::WriteErrors => "Writes that failed.",
        P::ChecksumErrors => "Blocks whose checksum was wrong.",
        P::InitializeErrors => "Writes of an initialization that failed.",
        P::NullOps => "Operations that move nothing.",
        P::ReadOps => "Reads.",
        P::WriteOps => "Writes.",
        P::FreeOps => "Frees.",
        P::ClaimOps => "Blocks of the intent log that were claimed at import.",
        P::TrimOps => "Trims.",
        P::NullBytes => "Bytes of operations that move nothing.",
        P::ReadBytes => "Bytes read.",
        P::WriteBytes => "Bytes written.",
        P::FreeBytes => "Bytes freed.",
        P::ClaimBytes => "Bytes of the intent log that were claimed at import.",
        P::TrimBytes => "Bytes trimmed.",
        P::Removing => "Whether its data is being moved to other vdevs.",
        P::Allocating => "Whether new blocks are allocated on it.",
        P::Failfast => "Whether the system is asked not to retry requests.",
        P::ChecksumN => "How many checksum errors within checksum_t degrade it.",
        P::ChecksumT => "The seconds within which checksum errors are counted.",
        P::IoN => "How many failed requests within io_t fault it.",
        P::IoT => "The seconds within which failed requests are counted.",
        P::RaidzExpanding => "Whether a device is being added to it.",
        P::SlowIoN => "How many slow requests within slow_io_t degrade it.",
        P::SlowIoT => "The seconds within which slow requests are counted.",
        P::TrimSupport => "Whether its devices can trim.",
        P::TrimErrors => "Trims that failed.",
        P::SlowIos => "Requests that took very long.",
        _ => "",
    }
}
