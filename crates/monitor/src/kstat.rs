//! `aquifer kstat`: counters under the names and in the format of the files in `/proc/spl/kstat/zfs`.
//!
//! Differs from OpenZFS: lists only counters of things that exist here; counters that are always 0 (blocks
//! that are not to be cached) are included, because programs read them. `anon_size`, the changed and
//! unwritten data, has a limit of its own and is not part of `size`. Reads ahead of a scrub count as predictive.

use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::Ordering;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::output::json::{document, print};
use clikit::pool_state;
use clikit::session::Home;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::Registry;
use engine::memory::stats::{ByPurpose, ReadPurpose};
use engine::memory::{HEADER, Limit};
use serde_json::{Map, json};

use super::zil::ZilSample;

/// Types of counters in a kstat.
#[doc(alias = "KSTAT_DATA_UINT32")]
const UINT32: u8 = 2;
#[doc(alias = "KSTAT_DATA_INT64")]
const INT64: u8 = 3;
#[doc(alias = "KSTAT_DATA_UINT64")]
pub(super) const UINT64: u8 = 4;

/// Print counters in the format of the kernel's OpenZFS in /proc/spl/kstat/zfs.
#[derive(Debug, Args)]
pub struct Kstat {
    /// Print JSON.
    #[arg(short = 'j', long = "json")]
    pub json: bool,
    /// The file: arcstats, zil, brtstats, POOL/txgs, POOL/state, POOL/guid, POOL/objset-0xNUMBER or POOL/ddt_stats_CHECKSUM.
    #[arg(default_value = "arcstats")]
    pub name: String,
}

/// The checksums that dedup tables can have.
const DEDUP: [&str; 5] = ["sha256", "sha512", "skein", "edonr", "blake3"];

/// A file of a pool's folder in `/proc/spl/kstat/zfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PoolFile {
    Txgs,
    State,
    Guid,
    /// The counters of this dataset.
    Objset(u64),
    /// Counters of the dedup table of that checksum.
    Dedup(&'static str),
}

impl Kstat {
    /// The pool and the file that the name asks for; paths below the folder of all kstats are accepted.
    fn pool_file(&self) -> Option<(&str, PoolFile)> {
        let (folder, file) = self.name.rsplit_once('/')?;
        let file = match file {
            "txgs" => PoolFile::Txgs,
            "state" => PoolFile::State,
            "guid" => PoolFile::Guid,
            other if other.starts_with("objset-0x") => {
                PoolFile::Objset(u64::from_str_radix(other.strip_prefix("objset-0x")?, 16).ok()?)
            }
            _ => {
                let checksum = file.strip_prefix("ddt_stats_")?;
                PoolFile::Dedup(DEDUP.into_iter().find(|known| *known == checksum)?)
            }
        };
        Some((folder.rsplit('/').next()?, file))
    }

    /// The process in which it runs.
    pub fn home(&self) -> Home {
        Home::Pools
    }
}

impl Verb for Kstat {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if let Some((name, file)) = self.pool_file().filter(|_| !self.json) {
            let pool = of_daemon(ctx)?.get(name);
            let pool = pool.ok_or_else(|| ctx.no_pool(name))?;
            let failed = |e: engine::Error| Failure::failed(e.what());
            let text = match file {
                PoolFile::Objset(number) => {
                    let found = ZilSample::of_pool(&pool)?.into_iter().find(|sample| sample.number == number);
                    let gone =
                        || Failure::failed(format!("dataset {number:#x} of pool '{name}' is not open"));
                    found.ok_or_else(gone)?.text()
                }
                PoolFile::Txgs => {
                    format!("0 0 0x00 0 0 0 0\n{}", pool.spa().map_err(failed)?.txg_history())
                }
                PoolFile::Dedup(checksum) => {
                    let all = pool.spa().map_err(failed)?.shared.dedup_counters();
                    let counters = all.into_iter().find(|(name, _)| *name == checksum);
                    named(counters.into_iter().flat_map(|(_, counters)| counters).map(
                        |(name, is_short, value)| {
                            (name, if is_short { UINT32 } else { UINT64 }, signed(value))
                        },
                    ))
                }
                PoolFile::Guid => format!("{}\n", pool.guid()),
                PoolFile::State => format!("{}\n", pool_state::of_imported(&pool).map_err(failed)?),
            };
            write!(ctx.out, "{text}")?;
            return Ok(Exit::OK);
        }
        let file = self.name.rsplit('/').next();
        if file == Some("zil") && !self.json {
            write!(ctx.out, "{}", ZilSample::all_logs(&*of_daemon(ctx)?).text())?;
            return Ok(Exit::OK);
        }
        if file == Some("brtstats") && !self.json {
            let all = clone_counters(&*of_daemon(ctx)?);
            write!(ctx.out, "{}", named(all.into_iter().map(|(name, value)| (name, UINT64, signed(value)))))?;
            return Ok(Exit::OK);
        }
        if file != Some("arcstats") {
            let what = format!(
                "there is no kstat '{}'; there are arcstats, zil, brtstats, POOL/txgs, POOL/state, POOL/guid, \
                 POOL/objset-0xNUMBER and POOL/ddt_stats_CHECKSUM",
                self.name
            );
            return Err(Failure::usage(what));
        }
        let stats = Arcstats::of(&*of_daemon(ctx)?);
        if self.json {
            let mut doc = document(&ctx.command);
            let map: Map<_, _> =
                stats.0.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
            doc.insert("arcstats".into(), map.into());
            print(&mut *ctx.out, &doc.into())?;
        } else {
            write!(ctx.out, "{}", stats.text())?;
        }
        Ok(Exit::OK)
    }
}

/// The registry, or an error without a daemon.
pub(super) fn of_daemon(ctx: &Ctx) -> Result<std::sync::Arc<Registry>, Failure> {
    ctx.registry().map_err(|_| Failure::failed("no pools are imported: no daemon is running"))
}

/// All counters, in the order of OpenZFS's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Arcstats(Vec<(&'static str, i64)>);

const PURPOSES: [(ReadPurpose, [&str; 3]); 4] = [
    (
        ReadPurpose { prefetch: false, metadata: false, paged: false },
        ["demand_data_hits", "demand_data_iohits", "demand_data_misses"],
    ),
    (
        ReadPurpose { prefetch: false, metadata: true, paged: false },
        ["demand_metadata_hits", "demand_metadata_iohits", "demand_metadata_misses"],
    ),
    (
        ReadPurpose { prefetch: true, metadata: false, paged: false },
        ["prefetch_data_hits", "prefetch_data_iohits", "prefetch_data_misses"],
    ),
    (
        ReadPurpose { prefetch: true, metadata: true, paged: false },
        ["prefetch_metadata_hits", "prefetch_metadata_iohits", "prefetch_metadata_misses"],
    ),
];

impl Arcstats {
    /// The counters of all pools.
    pub(super) fn of(registry: &Registry) -> Self {
        let memory = &registry.memory;
        let (stats, now) = (&memory.stats, memory.contents());
        let kinds: [&ByPurpose; 3] = [&stats.hits, &stats.io_hits, &stats.misses];
        let mut all = Self::default();
        for (name, kind) in ["hits", "iohits", "misses"].into_iter().zip(kinds) {
            all.add(name, kind.total());
        }
        for (purpose, names) in PURPOSES {
            names.into_iter().zip(kinds).for_each(|(name, kind)| all.add(name, kind.get(purpose)));
        }
        let [mru, mfu, mru_ghost, mfu_ghost, uncached] = now.sizes.hits;
        let listed = [
            ("mru_hits", mru),
            ("mru_ghost_hits", mru_ghost),
            ("mfu_hits", mfu),
            ("mfu_ghost_hits", mfu_ghost),
            ("uncached_hits", uncached),
            ("deleted", now.evicted),
            ("mutex_miss", 0),
            ("evict_skip", 0),
            ("evict_l2_cached", 0),
            ("evict_l2_skip", 0),
            ("hash_elements", now.known),
            ("hash_elements_max", now.most_known),
            ("c", now.target),
            ("c_min", memory.floor()),
            ("c_max", memory.limits.get(Limit::ArcMax)),
        ];
        listed.into_iter().for_each(|(name, value)| all.add(name, value));
        all.add_sizes(registry);
        stats.second.all().for_each(|(name, value)| all.add(name, value));
        all.add_machine(registry);
        let joined = stats.prefetch_joined.load(Ordering::Relaxed);
        let used = stats.prefetch_used.load(Ordering::Relaxed);
        let ahead = |metadata| stats.misses.get(ReadPurpose { prefetch: true, metadata, paged: false });
        all.add("predictive_prefetch", ahead(false) + ahead(true));
        all.add("demand_hit_predictive_prefetch", used.saturating_sub(joined));
        all.add("demand_iohit_predictive_prefetch", joined);
        all
    }

    fn add_sizes(&mut self, registry: &Registry) {
        let now = registry.memory.contents();
        let sizes = now.sizes;
        let headers = now.known * HEADER;
        let dirty = registry.all().iter().filter_map(|pool| Some(pool.spa().ok()?.dirty.total())).sum();
        let (recent, frequent, uncached) = (sizes.recent, sizes.frequent, sizes.uncached);
        let (ghost_recent, ghost_frequent) = (sizes.ghost_recent, sizes.ghost_frequent);
        let listed = [
            ("size", now.bytes + headers + registry.memory.second()),
            ("compressed_size", now.bytes),
            ("uncompressed_size", now.bytes),
            ("overhead_size", 0),
            ("hdr_size", headers),
            ("data_size", recent.data + frequent.data + uncached.data),
            ("metadata_size", recent.metadata + frequent.metadata + uncached.metadata),
            ("anon_size", dirty),
            ("mru_size", recent.total()),
            ("mru_data", recent.data),
            ("mru_metadata", recent.metadata),
            ("mru_ghost_size", ghost_recent.total()),
            ("mru_ghost_data", ghost_recent.data),
            ("mru_ghost_metadata", ghost_recent.metadata),
            ("mfu_size", frequent.total()),
            ("mfu_data", frequent.data),
            ("mfu_metadata", frequent.metadata),
            ("mfu_ghost_size", ghost_frequent.total()),
            ("mfu_ghost_data", ghost_frequent.data),
            ("mfu_ghost_metadata", ghost_frequent.metadata),
            ("uncached_size", uncached.total()),
            ("uncached_data", uncached.data),
            ("uncached_metadata", uncached.metadata),
            ("arc_meta_used", recent.metadata + frequent.metadata + headers),
        ];
        listed.into_iter().for_each(|(name, value)| self.add(name, value));
    }

    fn add_machine(&mut self, registry: &Registry) {
        let memory = &registry.memory;
        let free = daemon::memory::available();
        let keep = memory.limits.get(Limit::ArcSysFree);
        self.add("memory_all_bytes", daemon::memory::total());
        self.add("memory_free_bytes", free);
        self.0.push(("memory_available_bytes", signed(free).saturating_sub(signed(keep))));
        self.add("arc_no_grow", u64::from(memory.target() < memory.limits.get(Limit::ArcMax)));
        self.add("arc_need_free", keep.saturating_sub(free));
        self.add("arc_sys_free", keep);
    }

    fn add(&mut self, name: &'static str, value: u64) {
        self.0.push((name, signed(value)));
    }

    /// One counter; 0 if it does not exist.
    pub(super) fn get(&self, name: &str) -> i64 {
        self.0.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, i64)> {
        self.0.iter().copied()
    }

    /// The text of the kernel's file; type 4 is an unsigned 64-bit number, 3 a signed one.
    fn text(&self) -> String {
        named(self.0.iter().map(|(name, value)| (*name, if *value < 0 { INT64 } else { UINT64 }, *value)))
    }
}

/// The counters of the clone tables of all pools.
fn clone_counters(registry: &Registry) -> Vec<(&'static str, u64)> {
    let mut all: Vec<(&'static str, u64)> = Vec::new();
    for spa in registry.all().iter().filter_map(|pool| pool.spa().ok()) {
        let counters = spa.shared.clone_counters();
        all.resize(counters.len(), ("", 0));
        for (sum, (name, value)) in all.iter_mut().zip(counters) {
            *sum = (name, sum.1.saturating_add(value));
        }
    }
    all
}

/// Counters in the format of named kstats: name, type and value of each.
pub(super) fn named<V: Display>(counters: impl Iterator<Item = (&'static str, u8, V)>) -> String {
    let rows: Vec<String> =
        counters.map(|(name, kind, value)| format!("{name:<31} {kind:<4} {value}\n")).collect();
    let count = rows.len();
    let head = format!("0 1 0x01 {count} {} 0 0\n{:<31} {:<4} data\n", count * 272, "name", "type");
    std::iter::once(head).chain(rows).collect()
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_readers_of_kstats_split_at_spaces() {
        let stats = Arcstats(vec![("hits", 7), ("memory_available_bytes", -1)]);
        let text = stats.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["hits", "4", "7"]);
        assert_eq!((stats.get("hits"), stats.get("none")), (7, 0));
    }
}
