//! The four labels of a device: read, checked one by one, and the best of them chosen.
//!
//! Any one label is enough. Each copy is judged alone, so that a listing can name the torn ones of the four;
//! the choice then falls on
//! 1. the vdev named in most of the usable copies (a disk that was used before may still carry labels of its
//!    former pool), earlier copies deciding a tie, and
//! 2. of that vdev's copies a verified one before an unverified one, then the newest txg.
//!
//! Differs from OpenZFS: its search takes the first copy that decodes and never checks the checksum;
//! its kernel checks it and takes the newest. We do both, and use an unverified copy as a last resort.

use blkdev::BlockDevice;
use checksum::Algorithm;
use nvpair::NvList;
use ondisk::label::{LABELS, NVLIST_SIZE, PHYS_OFFSET, PHYS_SIZE, label_offset, label_verifier};
use ondisk::{Eck, EckPhys, Endian};
use zcommon::vdev::PoolState;

/// Result of checking the checksum trailer of a label's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// The checksum is right for this place on the device.
    Verified,
    /// There is a trailer and its checksum is wrong: torn, damaged, or moved from elsewhere.
    BadChecksum,
    /// There is no trailer.
    NoTrailer,
}

/// Why a label has no configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelFault {
    /// The device gave an error.
    Unreadable(String),
    /// All bytes are zero: there never was a label, or it was cleared.
    Empty,
    /// The bytes are no name-value list.
    Malformed(String),
}

/// One of a device's four labels.
#[derive(Debug, Clone)]
pub struct LabelCopy {
    /// 0 to 3.
    pub index: u32,
    /// Where it starts on the device, in bytes.
    pub offset: u64,
    /// Result of its checksum.
    pub trust: Trust,
    /// Its configuration.
    pub config: Result<NvList, LabelFault>,
}

/// The labels of one device.
#[derive(Debug, Clone, Default)]
pub struct DeviceLabels {
    /// Size of the device in bytes.
    pub size: u64,
    /// The copies, by index; none when the device is too small for four.
    pub copies: Vec<LabelCopy>,
}

impl DeviceLabels {
    /// Reads the configuration part of all four labels: 448 KiB at most.
    pub fn read(dev: &dyn BlockDevice) -> Self {
        let size = dev.geometry().size;
        let copies = (0..LABELS).filter_map(|index| Some(read_copy(dev, index, label_offset(size, index)?)));
        Self { size, copies: copies.collect() }
    }

    /// The copies that describe a member of a pool, a spare or a cache device.
    pub fn usable(&self) -> impl Iterator<Item = (&LabelCopy, &NvList)> {
        self.copies.iter().filter_map(|copy| {
            let config = copy.config.as_ref().ok()?;
            is_usable(config).then_some((copy, config))
        })
    }

    /// The configuration to go by.
    pub fn best(&self) -> Option<&NvList> {
        let owner = self.owner()?;
        let of_owner = self.usable().filter(|(_, config)| identity(config) == owner);
        let newest = of_owner.max_by_key(|(copy, config)| {
            (copy.trust == Trust::Verified, config.u64("txg").unwrap_or(0), std::cmp::Reverse(copy.index))
        });
        newest.map(|(_, config)| config)
    }

    /// Guids of the pool that the device has left, and of the leaf that it was there: its labels have txg 0 then.
    #[doc(alias = "VDEV_LABEL_REMOVE")]
    pub fn left(&self) -> Option<(u64, u64)> {
        if self.usable().next().is_some() {
            return None;
        }
        let verified = self.copies.iter().filter(|copy| copy.trust == Trust::Verified);
        let configs = verified.filter_map(|copy| copy.config.as_ref().ok());
        let is_of_member = |config: &&NvList| {
            let state = config.u64("state").and_then(PoolState::from_number);
            let is_aux = matches!(state, Some(PoolState::Spare | PoolState::L2cache));
            !is_aux && config.u64("txg") == Some(0)
        };
        configs.filter(is_of_member).map(identity).find(|(pool, vdev)| *pool != 0 && *vdev != 0)
    }

    /// The configuration of another pool for the same vdev, in as many copies as the chosen one: a change of the pool's guid was
    /// interrupted. A vdev that was being split off is none: its newest uberblock is one of the new pool.
    pub fn rival(&self) -> Option<&NvList> {
        let (pool, vdev) = self.owner()?;
        let split_from = self.best()?.u64("split_guid");
        let is_rival = |id: (u64, u64)| id.0 != 0 && id.0 != pool && id.1 == vdev && Some(id.0) != split_from;
        let rivals = || self.usable().filter(|(_, config)| is_rival(identity(config)));
        (pool != 0 && rivals().count() == self.count()).then(|| rivals().next().map(|(_, config)| config))?
    }

    /// How many usable copies speak of the vdev that [`DeviceLabels::best`] chose.
    pub fn count(&self) -> usize {
        let owner = self.owner();
        self.usable().filter(|(_, config)| Some(identity(config)) == owner).count()
    }

    /// Whether the chosen configuration has a right checksum.
    pub fn is_verified(&self) -> bool {
        let owner = self.owner();
        self.usable().any(|(copy, config)| copy.trust == Trust::Verified && Some(identity(config)) == owner)
    }

    /// Pool and vdev guids of usable copies that speak of another vdev than the chosen one.
    pub fn others(&self) -> Vec<(u64, u64)> {
        let owner = self.owner();
        let mut others: Vec<_> =
            self.usable().map(|(_, config)| identity(config)).filter(|id| Some(*id) != owner).collect();
        others.dedup();
        others
    }

    /// Log2 of the sector size of its top-level vdev in the chosen configuration.
    pub fn ashift(&self) -> Option<u32> {
        let ashift = self.best()?.nvlist("vdev_tree")?.u64("ashift")?;
        u32::try_from(ashift).ok().filter(|ashift| *ashift < 32)
    }

    fn owner(&self) -> Option<(u64, u64)> {
        let ids: Vec<_> = self.usable().map(|(_, config)| identity(config)).collect();
        let votes = |id: &(u64, u64)| ids.iter().filter(|other| *other == id).count();
        // `max_by_key` keeps the last of equals, hence the reversal.
        ids.iter().rev().max_by_key(|id| votes(id)).copied()
    }
}

/// Pool guid (0 in spares and cache devices) and vdev guid.
fn identity(config: &NvList) -> (u64, u64) {
    (config.u64("pool_guid").unwrap_or(0), config.u64("guid").unwrap_or(0))
}

/// A label without guid, with an impossible state, or with txg 0 (`zpool create` had begun and not
/// finished) describes nothing.
fn is_usable(config: &NvList) -> bool {
    let named = config.u64("guid").is_some_and(|guid| guid != 0);
    match config.u64("state").and_then(PoolState::from_number) {
        Some(PoolState::Spare | PoolState::L2cache) => named,
        Some(PoolState::Active | PoolState::Exported | PoolState::Destroyed) => {
            named && config.u64("txg").is_some_and(|txg| txg != 0)
        }
        _ => false,
    }
}

fn read_copy(dev: &dyn BlockDevice, index: u32, offset: u64) -> LabelCopy {
    let at = offset.saturating_add(PHYS_OFFSET);
    let len = usize::try_from(PHYS_SIZE).unwrap_or(0);
    match blkdev::read_at(dev, at, len) {
        Ok(block) => {
            LabelCopy { index, offset, trust: verify_label_block(&block, at), config: decode(&block) }
        }
        Err(err) => {
            let config = Err(LabelFault::Unreadable(err.to_string()));
            LabelCopy { index, offset, trust: Trust::NoTrailer, config }
        }
    }
}

fn decode(block: &[u8]) -> Result<NvList, LabelFault> {
    if block.iter().all(|byte| *byte == 0) {
        return Err(LabelFault::Empty);
    }
    let packed = usize::try_from(NVLIST_SIZE).ok().and_then(|len| block.get(..len)).unwrap_or(block);
    NvList::decode(packed).map_err(|err| LabelFault::Malformed(err.to_string()))
}

/// Checks a block with an embedded label checksum: its last 40 bytes hold the SHA-256 of the block in
/// which the checksum's own place holds the block's offset on the device.
#[doc(alias = "ZIO_CHECKSUM_LABEL")]
pub fn verify_label_block(block: &[u8], offset: u64) -> Trust {
    let Ok(eck) = Eck::from_trailer(block) else { return Trust::NoTrailer };
    let Some((body, _)) = block.split_last_chunk::<{ EckPhys::SIZE }>() else { return Trust::NoTrailer };
    let mut whole = body.to_vec();
    whole.extend(Eck { endian: eck.endian, cksum: label_verifier(offset) }.to_bytes());
    let actual = checksum::digest(Algorithm::Sha256, &whole, None, eck.endian == Endian::Big);
    if actual == eck.cksum { Trust::Verified } else { Trust::BadChecksum }
}
