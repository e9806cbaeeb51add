//! A short description of each property, for the pages generated from the property tables.

use zcommon::props::{VdevProp, ZfsProp, ZpoolProp};

/// The description of a dataset property; empty for hidden ones.
pub fn of_dataset(prop: ZfsProp) -> &'static str {
    use ZfsProp as P;
    match prop {
        P::Type => "The kind of the dataset.",
        P::Creation => "When the dataset was created; with -p in seconds since 1970.",
        P::Used => {
            "Space used by the dataset and everything below it, including snapshots and reservations. Destroying the dataset with -r frees it."
        }
        P::Available => {
            "Space that can still be written to the dataset: the minimum of the pool's free space and the remaining quotas, with reservations taken into account."
        }
        P::Referenced => {
            "Space of the blocks that the dataset itself refers to, whether or not it shares them with snapshots and clones."
        }
        P::Compressratio => {
            "How well the data of the dataset and of everything below it is compressed: logical size divided by size on disk."
        }
        P::Mounted => "Whether the file system is mounted.",
        P::Origin => "The snapshot from which the clone was created.",
        P::Quota => "The maximum space of the file system and everything below it, including snapshots.",
        P::Reservation => {
            "Space reserved for the dataset and everything below it; the parent counts it as used."
        }
        P::Volsize => "The size of the volume. Unless it is sparse, changing it changes refreservation, too.",
        P::Volblocksize => "The block size of the volume, which is fixed when it is created.",
        P::Recordsize => {
            "The maximum block size of files written from now on. Values above 128K need the feature large_blocks; up to 16M."
        }
        P::Mountpoint => {
            "Where the file system is mounted. File systems below inherit it with their names appended. legacy leaves mounting to mount(8) and fstab(5); none does not mount it."
        }
        P::Sharenfs => {
            "How the file system is shared over NFS. This build keeps the value and shares nothing; zpool status names such datasets."
        }
        P::Checksum => {
            "The checksum of blocks written from now on. on means fletcher4. Metadata always has a checksum."
        }
        P::Compression => {
            "The compression of blocks written from now on. on means lz4 if the pool has the feature lz4_compress, otherwise lzjb."
        }
        P::Atime => "Whether reading a file sets its access time.",
        P::Devices => "Whether device nodes of the file system can be opened.",
        P::Exec => "Whether programs of the file system can be executed.",
        P::Setuid => "Whether set-user-id and set-group-id bits of the file system take effect.",
        P::Readonly => "Whether the dataset refuses changes.",
        P::Zoned => "Whether the dataset is managed by a container. With on the host does not mount it.",
        P::Snapdir => {
            "Whether .zfs is listed in the root directory of the file system. hidden hides it, but it can be entered; disabled removes it."
        }
        P::Aclmode => "The effect of chmod(2) on an NFSv4 access control list.",
        P::Aclinherit => "Which entries of an NFSv4 access control list new files inherit.",
        P::Createtxg => {
            "The transaction group in which the dataset was created. It orders snapshots and bookmarks."
        }
        P::Canmount => {
            "Whether the file system can be mounted. noauto mounts it only when it is named; off never does, but file systems below still inherit its mount point."
        }
        P::Xattr => {
            "Where extended attributes are kept: sa in the file's dnode if there is room, dir in a hidden directory. on means sa."
        }
        P::Copies => "The number of copies of each block, in addition to the redundancy of the vdevs.",
        P::Version => "The version of the file system format.",
        P::Normalization => {
            "How names are normalized before they are compared. It is fixed at creation and implies utf8only."
        }
        P::Utf8only => "Whether names must be valid UTF-8. It is fixed at creation.",
        P::Casesensitivity => {
            "Whether names that differ in case only name different files. It is fixed at creation."
        }
        P::Vscan => {
            "Whether files are scanned for viruses. The value is stored for other systems and has no effect here."
        }
        P::Nbmand => {
            "Whether mandatory locks are honoured. The value is stored for other systems and has no effect here."
        }
        P::Sharesmb => {
            "How the file system is shared over SMB. This build keeps the value and shares nothing; zpool status names such datasets."
        }
        P::Defaultuserquota => {
            "The maximum space of each user without a user quota of its own; none for no limit."
        }
        P::Defaultuserobjquota => {
            "The maximum number of objects of each user without an object quota of its own; none for no limit."
        }
        P::Defaultgroupquota => {
            "The maximum space of each group without a group quota of its own; none for no limit."
        }
        P::Defaultgroupobjquota => {
            "The maximum number of objects of each group without an object quota of its own; none for no limit."
        }
        P::Defaultprojectquota => {
            "The maximum space of each project without a project quota of its own; none for no limit."
        }
        P::Defaultprojectobjquota => {
            "The maximum number of objects of each project without an object quota of its own; none for no limit."
        }
        P::Refquota => {
            "The maximum space that the dataset itself may refer to, without snapshots and datasets below it."
        }
        P::Refreservation => {
            "Space reserved for the dataset itself, without snapshots and datasets below it. For a volume auto reserves the space of its full size."
        }
        P::Guid => "A number that identifies the dataset permanently, also in streams.",
        P::Primarycache => "The parts of the dataset that are cached in memory: all, metadata or none.",
        P::Secondarycache => "The parts of the dataset that may go to cache devices: all, metadata or none.",
        P::Usedbysnapshots => "Space that destroying all snapshots of the dataset would free.",
        P::Usedbydataset => {
            "Space that destroying the dataset itself would free, without snapshots and reservation."
        }
        P::Usedbychildren => "Space that destroying everything below the dataset would free.",
        P::Usedbyrefreservation => "Space that removing the refreservation would free.",
        P::DeferDestroy => "Whether the snapshot is destroyed as soon as its last hold and clone are gone.",
        P::Userrefs => "The number of holds of the snapshot.",
        P::Logbias => {
            "latency writes synchronous changes to the log first; throughput writes their data to its final location at once."
        }
        P::Objsetid => "The number of the dataset's object set in its pool.",
        P::Dedup => {
            "Whether a block that the pool holds already is stored once, and by which checksum blocks are recognized; verify compares their bytes as well."
        }
        P::Mlslabel => "A sensitivity label of another system; it cannot be set here.",
        P::Sync => {
            "standard makes synchronous writes durable before they return; always does so for every change; disabled never does, and a power cut then loses the last seconds."
        }
        P::Dnodesize => {
            "The dnode size of new files. Larger dnodes hold more extended attributes; they need the feature large_dnode."
        }
        P::Refcompressratio => "Like compressratio, for the data that the dataset itself refers to.",
        P::Written => {
            "Space written since the previous snapshot. written@SNAPSHOT and written#BOOKMARK count from that snapshot or bookmark."
        }
        P::Clones => "The clones of the snapshot.",
        P::Logicalused => "Like used, before compression and copies.",
        P::Logicalreferenced => "Like referenced, before compression and copies.",
        P::Volmode => "How the volume is shown as a device. Here volumes are files in mounts.",
        P::FilesystemLimit => {
            "The maximum number of datasets below this one. Privileged users are not limited."
        }
        P::SnapshotLimit => {
            "The maximum number of snapshots of the dataset and below it. Privileged users are not limited."
        }
        P::FilesystemCount => {
            "The number of datasets below this one; counted once a limit is set on it or above."
        }
        P::SnapshotCount => {
            "The number of snapshots of this dataset and below it; counted once a limit is set on it or above."
        }
        P::Snapdev => "Whether devices of a volume's snapshots are shown.",
        P::Acltype => {
            "The type of access control lists: posix, or none. nfsv4 lists are kept on disk and not enforced on Linux."
        }
        P::Context => "The SELinux label of all files of the mount.",
        P::Fscontext => "The SELinux label of the file system.",
        P::Defcontext => "The SELinux label of files that have none.",
        P::Rootcontext => "The SELinux label of the root directory.",
        P::Relatime => {
            "Whether access times are updated only when they are older than the last change, or than a day. It applies while atime is on."
        }
        P::RedundantMetadata => {
            "How much metadata gets an additional copy: all of it, most, some, or only the metadata that the pool requires."
        }
        P::Overlay => "Whether the file system may be mounted on a directory that is not empty.",
        P::ReceiveResumeToken => "A token for resuming an interrupted receive.",
        P::Encryption => {
            "The cipher of the dataset. It is fixed at creation; everything below an encrypted dataset is encrypted."
        }
        P::Keylocation => {
            "The location of the key: prompt reads it from the user, a URI names a file or a server."
        }
        P::Keyformat => {
            "The format of the key: 32 bytes (raw), 64 hexadecimal digits, or a passphrase of 8 to 512 bytes."
        }
        P::Pbkdf2iters => {
            "The number of iterations that derive a key from a passphrase. More iterations make guessing and loading slower."
        }
        P::Encryptionroot => "The dataset whose key this dataset uses.",
        P::Keystatus => "Whether the key is loaded.",
        P::SpecialSmallBlocks => "Blocks up to this size go to special vdevs; 0 sends metadata only.",
        P::RedactSnaps => "The snapshots that the dataset or bookmark was redacted for.",
        P::SnapshotsChanged => "When a snapshot of the dataset was last created or destroyed.",
        P::Prefetch => "The scope of read-ahead: data and metadata, metadata only, or nothing.",
        P::Volthreading => {
            "Whether requests to the volume are spread over threads, if it is a device of the kernel's OpenZFS."
        }
        P::Direct => {
            "The effect of O_DIRECT: standard honours it, always behaves as if it were given, disabled ignores it."
        }
        P::Longname => "Whether names may be up to 1023 bytes long. It needs the feature longname.",
        _ => "",
    }
}

/// The description of a pool property; empty for hidden ones.
pub fn of_pool(prop: ZpoolProp) -> &'static str {
    use ZpoolProp as P;
    match prop {
        P::Size => "The size of the pool, parity of raidz and draid included.",
        P::Capacity => "The allocated part of the pool, in percent.",
        P::Altroot => {
            "A directory that is prepended to all mount points while the pool is imported. It is set at creation or import."
        }
        P::Health => "The state of the pool.",
        P::Guid => "A number that identifies the pool.",
        P::Version => "The version of the pool's format, 1 to 28; a pool with feature flags shows -.",
        P::Bootfs => "The dataset from which a boot loader boots.",
        P::Delegation => "Whether permissions can be delegated with zfs allow.",
        P::Autoreplace => {
            "Whether a new device in the slot of a failed one replaces it. This build stores the value and does not watch for devices; zpool replace replaces one."
        }
        P::Cachefile => "The file that records the pool for the next start; none records it nowhere.",
        P::Failmode => {
            "The behaviour when the pool can no longer write. This build returns an error to callers and continues after zpool clear, whatever the value."
        }
        P::Listsnapshots => "Whether zfs list without -t shows snapshots.",
        P::Autoexpand => "Whether the pool grows when its devices do.",
        P::Dedupratio => "The saving of deduplication: logical size divided by size on disk.",
        P::Free => "Space that is not allocated.",
        P::Allocated => "Space that is allocated.",
        P::Readonly => "Whether the pool was imported read-only. It is set at import.",
        P::Ashift => {
            "The sector size of vdevs that are added, as a power of two; 0 uses the devices' sector size."
        }
        P::Comment => "Text of up to 32 printable characters, kept in the labels.",
        P::Expandsize => "Space of the devices that the pool does not use yet; zpool online -e takes it.",
        P::Freeing => "Space of destroyed datasets that is still to be freed in the background.",
        P::Fragmentation => "The fragmentation of free space, in percent.",
        P::Leaked => "Space that could not be freed because of damage.",
        P::Multihost => "Whether the pool is protected against import by two machines at once.",
        P::Checkpoint => "Space held by the checkpoint.",
        P::LoadGuid => "A number of this import; the next import has another.",
        P::Autotrim => "Whether freed space is trimmed on devices that support it.",
        P::Compatibility => "Files that list the features that may be enabled; off allows all, legacy none.",
        P::Bcloneused => "Space of cloned blocks on disk.",
        P::Bclonesaved => "Space saved by block cloning.",
        P::Bcloneratio => "The saving of cloning: size without it divided by size with it.",
        P::DedupTableSize => "The size of the dedup tables.",
        P::DedupTableQuota => "The maximum size of the dedup tables; auto is the size of the dedup vdevs.",
        P::LastScrubbedTxg => "The last transaction group that a scrub covered completely.",
        _ => "",
    }
}

/// The description of a vdev property; empty for hidden ones.
pub fn of_vdev(prop: VdevProp) -> &'static str {
    use VdevProp as P;
    match prop {
        P::Capacity => "Its allocated part, in percent.",
        P::State => "Its state.",
        P::Guid => "A number that identifies it.",
        P::Asize => "Its usable size.",
        P::Psize => "The size of its devices.",
        P::Ashift => "Its sector size, as a power of two.",
        P::Size => "Its size.",
        P::Free => "Space that is not allocated.",
        P::Allocated => "Space that is allocated.",
        P::Comment => "Text set by the administrator.",
        P::Expandsize => "Space of its devices that is not used yet.",
        P::Fragmentation => "The fragmentation of its free space, in percent.",
        P::Bootsize => "The size of its boot partition.",
        P::Parity => "The number of its devices that may fail.",
        P::Path => "The device's path.",
        P::Devid => "The device's identity.",
        P::Physpath => "Where the device is attached.",
        P::Encpath => "The path of the device's slot in its enclosure.",
        P::Fru => "The part number of its replacement.",
        P::Parent => "The vdev above it.",
        P::Children => "The vdevs below it.",
        P::Numchildren => "The number of vdevs directly below it.",
        P::ReadErrors => "Reads that failed.",
        P::WriteErrors => "Writes that failed.",
        P::ChecksumErrors => "Blocks whose checksum was wrong.",
        P::InitializeErrors => "Writes of an initialization that failed.",
        P::NullOps => "Operations without data.",
        P::ReadOps => "Reads.",
        P::WriteOps => "Writes.",
        P::FreeOps => "Frees.",
        P::ClaimOps => "Blocks of the intent log that were claimed at import.",
        P::TrimOps => "Trims.",
        P::NullBytes => "Bytes of operations without data.",
        P::ReadBytes => "Bytes read.",
        P::WriteBytes => "Bytes written.",
        P::FreeBytes => "Bytes freed.",
        P::ClaimBytes => "Bytes of the intent log that were claimed at import.",
        P::TrimBytes => "Bytes trimmed.",
        P::Removing => "Whether its data is being moved to other vdevs.",
        P::Allocating => "Whether new blocks are allocated on it.",
        P::Failfast => "Whether the system is asked not to retry requests.",
        P::ChecksumN => "The number of checksum errors within checksum_t that degrades it.",
        P::ChecksumT => "The interval in seconds in which checksum errors are counted.",
        P::IoN => "The number of failed requests within io_t that faults it.",
        P::IoT => "The interval in seconds in which failed requests are counted.",
        P::RaidzExpanding => "Whether a device is being added to it.",
        P::SlowIoN => "The number of slow requests within slow_io_t that degrades it.",
        P::SlowIoT => "The interval in seconds in which slow requests are counted.",
        P::TrimSupport => "Whether its devices support trim.",
        P::TrimErrors => "Trims that failed.",
        P::SlowIos => "Requests above the slow I/O threshold.",
        P::SitOut => {
            "Whether reads do without this disk of a raidz or draid, because it is slow (autosit) or this is set."
        }
        P::Autosit => {
            "Whether disks that are much slower than the others of a raidz or draid sit out reads for some minutes."
        }
        P::SlowIoEvents => "Whether slow requests are reported as events (ereport.fs.zfs.delay).",
        _ => "",
    }
}
