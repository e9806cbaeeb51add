//! `zpool add`.

use std::io::Write;

use clap::Args;
use daemon::Imported;
use engine::vdev::config::AllocBias;
use zcommon::draid::DraidConfig;
use zutil::tree::VdevNode;

use super::vdev_names::VdevNames;
use super::vdevs::{self, Group, Kind, Leaf, Objections};
use crate::ctx::Ctx;
use crate::settings::{self, PoolSetting, When, of_pool};
use crate::verb::{Exit, Failure, Outcome, Verb};

/// Add vdevs to a pool.
#[derive(Debug, Args)]
pub struct Add {
    /// Although devices seem to be in use, or protect less than the pool.
    #[arg(short = 'f')]
    pub force: bool,
    #[command(flatten)]
    pub(crate) names: VdevNames,
    /// Show what would be.
    #[arg(short = 'n')]
    pub dry: bool,
    /// `ashift=N`.
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
        let pool = ctx.pool(&self.pool).ok_or_else(|| Failure::cannot("open", &self.pool, "no such pool"))?;
        let mut ashift = None;
        for (name, value) in settings::split(&self.props).map_err(cannot)? {
            match of_pool(&name, &value, When::New).map_err(cannot)? {
                PoolSetting::Ashift(n) => ashift = u32::try_from(n).ok().filter(|n| *n != 0),
                _ => return Err(Failure::usage(format!("property '{name}' can't be set here"))),
            }
        }
        let found = vdevs::parse(&self.vdevs, ctx)?;
        let known = known(&pool);
        if let Some(failure) = Objections::of(&found, self.force, ctx, known.as_ref()).failure(self.force) {
            return Err(failure);
        }
        if self.dry {
            writeln!(ctx.out, "would update '{}' to the following configuration:\n", self.pool)?;
            ctx.out.write_all(with_known(&pool, &found).as_bytes())?;
            return Ok(Exit::OK);
        }
        let spa = pool.spa().map_err(|e| cannot(e.what().to_owned()))?;
        let spec = vdevs::open(&found, ashift, "add to", &self.pool)?;
        spa.add(spec).map_err(|e| cannot(e.what().to_owned()))?;
        pool.look_again();
        ctx.registry()?.note(&pool)?;
        ctx.log(&pool)?;
        Ok(Exit::OK)
    }
}

/// The first ordinary vdev of the pool, which new ones should be like.
#[doc(alias = "get_replication")]
fn known(pool: &Imported) -> Option<Group> {
    let tree = pool.config().nvlist("vdev_tree").and_then(VdevNode::from_config)?;
    let top = tree.children.iter().find(|top| {
        !top.is_log && top.bias.is_none() && !matches!(top.kind.as_str(), "hole" | "indirect" | "missing")
    })?;
    Some(group(top))
}

fn group(top: &VdevNode) -> Group {
    let parity = top.nparity;
    let kind = match top.kind.as_str() {
        "mirror" => Kind::Mirror,
        "raidz" => Kind::Raidz(u32::try_from(parity).unwrap_or(0)),
        "draid" => {
            let children = u64::try_from(top.children.len()).unwrap_or(0);
            Kind::Draid(DraidConfig { parity, data: 0, children, spares: 0 })
        }
        _ => Kind::Single,
    };
    let own = std::slice::from_ref(top);
    let leaves = if kind == Kind::Single { own } else { &top.children };
    let leaf = |node: &VdevNode| Leaf {
        path: String::from_utf8_lossy(node.path.as_deref().unwrap_or_default()).into_owned().into(),
        is_disk: node.kind == "disk",
        size: 0,
    };
    Group { kind, class: AllocBias::Normal, leaves: leaves.iter().map(leaf).collect() }
}

fn with_known(pool: &Imported, new: &vdevs::Vdevs) -> String {
    let tree = pool.config().nvlist("vdev_tree").and_then(VdevNode::from_config);
    let mut all = vdevs::Vdevs::default();
    let olds = tree.iter().flat_map(|tree| &tree.children);
    let known =
        |top: &&VdevNode| !top.is_log && !matches!(top.kind.as_str(), "hole" | "indirect" | "missing");
    all.tops.extend(olds.filter(known).map(group));
    all.tops.extend(new.tops.iter().cloned());
    (all.spares, all.cache) = (new.spares.clone(), new.cache.clone());
    vdevs::layouts(&all, &pool.name())
}
