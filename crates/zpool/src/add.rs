//! `zpool add`.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::settings::{self, PoolSetting, When, of_pool};
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::Imported;
use engine::dsl::props::PropValue;
use engine::vdev::config::AllocBias;
use zcommon::draid::DraidConfig;
use zcommon::vdev::VdevKind;
use zutil::names::vdev_name;
use zutil::tree::VdevNode;

use super::layouts::Sections;
use super::vdev_names::VdevNames;
use super::vdevs::{self, Group, Kind, Leaf, Objections, Silenced};

/// Add vdevs to a pool.
#[derive(Debug, Args)]
pub struct Add {
    /// Force the use of vdevs, even if they appear to be in use or specify a conflicting replication level.
    #[arg(short = 'f')]
    pub force: bool,
    #[command(flatten)]
    pub(crate) names: VdevNames,
    /// Print the resulting layout without adding the vdevs.
    #[arg(short = 'n')]
    pub dry: bool,
    /// Allow vdevs that appear to be in use.
    #[arg(long = "allow-in-use", conflicts_with = "force")]
    pub allow_in_use: bool,
    /// Allow vdevs with a conflicting replication level.
    #[arg(long = "allow-replication-mismatch", conflicts_with = "force")]
    pub allow_replication_mismatch: bool,
    /// Allow vdevs with another ashift than the pool's.
    #[arg(long = "allow-ashift-mismatch", conflicts_with = "force")]
    pub allow_ashift_mismatch: bool,
    /// Set `ashift=N`.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub props: Vec<String>,
    /// The pool.
    pub pool: String,
    /// The vdevs.
    #[arg(value_name = "VDEV", required = true)]
    pub vdevs: Vec<String>,
}

impl Verb for Add {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let cannot = |what: String| Failure::cannot("add to", &self.pool, what);
        let pool = ctx.pool(&self.pool).ok_or_else(|| ctx.no_pool(&self.pool))?;
        let mut ashift = None;
        for (name, value) in settings::split(&self.props).map_err(cannot)? {
            match of_pool(&name, &value, When::New).map_err(cannot)? {
                PoolSetting::Ashift(n) => ashift = u32::try_from(n).ok().filter(|n| *n != 0),
                _ => return Err(Failure::usage(format!("property '{name}' can't be set here"))),
            }
        }
        let found = vdevs::parse(&self.vdevs, ctx)?;
        let known = known(&pool);
        let silenced = Silenced {
            in_use: self.force || self.allow_in_use,
            replication: self.force || self.allow_replication_mismatch || known.is_none(),
        };
        if let Some(failure) = Objections::of(&found, silenced, ctx, known.as_ref()).failure(self.force) {
            return Err(failure);
        }
        if self.dry {
            writeln!(ctx.out, "would update '{}' to the following configuration:\n", self.pool)?;
            ctx.out.write_all(self.with_known(&pool, &found).as_bytes())?;
            return Ok(Exit::OK);
        }
        let spa = pool.spa().map_err(|e| cannot(e.what().to_owned()))?;
        let spec = vdevs::open(&found, ashift.or_else(|| own_ashift(&pool)), ("add to", &self.pool), ctx)?;
        let aux = spec.spares.iter().chain(&spec.cache).map(|leaf| Arc::clone(&leaf.device)).collect();
        let alike = !(self.force || self.allow_ashift_mismatch);
        spa.vdevs().add(spec, alike).map_err(|e| cannot(e.what().to_owned()))?;
        pool.hold(aux);
        pool.look_again();
        ctx.registry()?.note(&pool);
        ctx.log(&pool)?;
        Ok(Exit::OK)
    }
}

/// The pool's property `ashift`, the default of new vdevs; `None` when it is not set.
fn own_ashift(pool: &Imported) -> Option<u32> {
    let view = pool.view().ok()?;
    match engine::spa::props::settings(&view).ok()?.get("ashift")? {
        PropValue::Number(shift) => u32::try_from(*shift).ok().filter(|shift| *shift != 0),
        _ => None,
    }
}

/// The vdev of the pool that new ones should be like: the last one that is no log. `None` when the pool's own vdevs differ,
/// so that there is nothing to be like.
#[doc(alias = "check_replication")]
fn known(pool: &Imported) -> Option<Group> {
    let tree = pool.config().nvlist("vdev_tree").and_then(VdevNode::from_config)?;
    let counts = |top: &&VdevNode| !top.is_log && !top.is_virtual();
    let mut groups: Vec<Group> = tree.children.iter().filter(counts).map(group).collect();
    if vdevs::are_alike(&groups) { groups.pop() } else { None }
}

/// The device itself, where another one takes or took its place.
fn first_leaf(mut node: &VdevNode) -> &VdevNode {
    while let Some(first) = node.children.first() {
        node = first;
    }
    node
}

fn group(top: &VdevNode) -> Group {
    let parity = top.nparity;
    let kind = match top.kind {
        VdevKind::Mirror => Kind::Mirror,
        VdevKind::Raidz => Kind::Raidz(u32::try_from(parity).unwrap_or(0)),
        VdevKind::Draid => {
            let (data, children, spares) = top.draid.unwrap_or_default();
            Kind::Draid(DraidConfig { parity, data, children, spares })
        }
        _ => Kind::Single,
    };
    let own = std::slice::from_ref(top);
    let leaves = if kind == Kind::Single { own } else { &top.children };
    let leaf = |node: &VdevNode| {
        let node = first_leaf(node);
        let path = PathBuf::from(OsStr::from_bytes(node.path.as_deref().unwrap_or_default()));
        let is_disk = node.kind == VdevKind::Disk;
        let size = if is_disk { 0 } else { path.metadata().map_or(0, |meta| meta.len()) };
        Leaf { path, is_disk, size }
    };
    Group { kind, class: AllocBias::Normal, leaves: leaves.iter().map(leaf).collect() }
}

impl Add {
    /// How the pool's vdevs and the new ones would stand.
    fn with_known(&self, pool: &Imported, new: &vdevs::Vdevs) -> String {
        let style = self.names.style();
        let name = |vdev: &VdevNode, with_id: bool| vdev_name(vdev, style, with_id);
        let mut sections = Sections::default();
        let facts = pool.view().ok().and_then(|view| zutil::load::facts(&view));
        let olds = facts.iter().flat_map(|facts| &facts.tree.children);
        for top in olds.filter(|top| !top.is_virtual()) {
            let class = class_of(top);
            let mut lines = vec![(0, name(top, class == AllocBias::Normal))];
            lines.extend(top.children.iter().map(|child| (2, name(child, false))));
            sections.add(class, lines);
        }
        let aux = facts.iter();
        aux.clone().flat_map(|facts| &facts.l2cache).for_each(|vdev| sections.add_cache(name(vdev, false)));
        aux.flat_map(|facts| &facts.spares).for_each(|vdev| sections.add_spare(name(vdev, false)));
        sections.add_new(new);
        sections.text(&pool.name())
    }
}

fn class_of(top: &VdevNode) -> AllocBias {
    match zutil::import_listing::class_of(top) {
        Some("logs") => AllocBias::Log,
        Some("special") => AllocBias::Special,
        Some("dedup") => AllocBias::Dedup,
        _ => AllocBias::Normal,
    }
}
