//! `zpool get`: properties of pools, one a line.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::listing::Lines;
use clikit::listing::PoolJson;
use clikit::output::get::{GetColumn, GetFormat, GetRow, GetWidths};
use clikit::output::json::{JsonStyle, document, print};
use clikit::output::row::Prop;
use clikit::output::value::width;
use clikit::source::PoolSource;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use serde_json::{Map, Value, json};
use zcommon::props::{VdevProp, ZpoolProp};
use zutil::import::select;

use super::get_vdev::{self, VdevView};
use super::json_form::vdev_info;
use super::prop::{PoolView, is_of_feature};

/// Print properties of pools.
#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    #[command(flatten)]
    pub(crate) lines: Lines,
    #[command(flatten)]
    pub(crate) json: PoolJson,
    /// Columns to print, comma separated: name, property, value, source, all.
    #[arg(short = 'o', value_name = "FIELD,…", value_delimiter = ',')]
    pub fields: Vec<String>,
    /// Properties, comma separated, or `all`.
    #[arg(value_name = "PROPERTY,…")]
    pub properties: String,
    /// Pools (default: all that are found), or one pool and some of its vdevs, or `all-vdevs`.
    #[arg(value_name = "POOL [VDEV]")]
    pub pools: Vec<String>,
}

impl Verb for Get {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let pools = self.source.candidates(ctx);
        let is_pool = |name: &String| select(pools.clone(), name).is_ok();
        match self.pools.split_first() {
            Some((pool, vdevs)) if is_pool(pool) && !vdevs.iter().all(is_pool) => {
                self.of_vdevs(pool, vdevs, ctx)
            }
            Some((name, _))
                if !pools.iter().any(|pool| pool.name == *name || name.parse() == Ok(pool.guid)) =>
            {
                if ctx.is_coming(name) {
                    return Err(ctx.no_pool(name));
                }
                self.source.explain(name, ctx);
                let what = format!("Cannot get properties of {name}: no such pool available.");
                Err(Failure::failed(what))
            }
            _ => self.of_pools(ctx),
        }
    }
}

impl Get {
    fn of_pools(&self, ctx: &mut Ctx) -> Outcome {
        let format = self.format()?;
        let mut widths = GetWidths::default();
        let mut lines = Vec::new();
        let mut pools = Map::new();
        let style = JsonStyle {
            int: self.json.style.json_int,
            pool_key_guid: self.json.json_pool_key_guid,
            ..JsonStyle::default()
        };
        let exit = self.source.each(&self.pools, ctx, |pool, candidate, ctx| {
            let view = PoolView::new(pool, candidate, ctx);
            let props = self.props(&view)?;
            let mut item = super::pool_object(&view, &style);
            let values = props
                .iter()
                .map(|(n, p)| (n.clone(), style.prop(p, self.lines.literal || self.json.style.json_int)));
            item.insert("properties".into(), Map::from_iter(values).into());
            pools.insert(super::pool_key(&view, &style), item.into());
            lines.extend(props.iter().map(|(name, prop)| self.row(pool.name.clone(), name, prop)));
            Ok(Exit::OK)
        })?;
        if self.json.style.json && exit != Exit::OK && !self.pools.is_empty() {
            return Ok(exit);
        }
        if self.json.style.json {
            let mut doc = document(&ctx.command);
            doc.insert("pools".into(), pools.into());
            print(&mut *ctx.out, &Value::Object(doc))?;
            return Ok(exit);
        }
        for line in &lines {
            widths.fit(line);
            let known = ZpoolProp::from_name(&line.property).map_or(0, |p| width(p.info()).0);
            widths.value = widths.value.max(known);
        }
        format.print(&mut *ctx.out, &widths, &lines)?;
        Ok(exit)
    }
}

impl Get {
    /// Properties of vdevs of one pool.
    fn of_vdevs(&self, pool: &str, names: &[String], ctx: &mut Ctx) -> Outcome {
        let format = self.format()?;
        let style = JsonStyle { int: self.json.style.json_int, ..JsonStyle::default() };
        let mut widths = GetWidths::default();
        let mut lines = Vec::new();
        let mut doc = document(&ctx.command);
        let exit = self.source.each(&[pool.to_owned()], ctx, |pool, candidate, ctx| {
            let view = PoolView::new(pool, candidate, ctx);
            let mut vdevs = Map::new();
            for (called, vdev) in self.vdevs(&view, names, ctx)? {
                let props = self.vdev_props(&vdev)?;
                let mut item = vdev_info(vdev.node, called.clone(), &style);
                item.shift_insert(1, "type".into(), json!("VDEV"));
                item.insert("class".into(), json!(vdev.class()));
                item.insert("state".into(), json!(vdev.node.health.state.word()));
                let value = |p: &Prop| style.prop(p, self.lines.literal || self.json.style.json_int);
                let values = props.iter().map(|(name, prop)| (name.clone(), value(prop)));
                item.insert("properties".into(), Map::from_iter(values).into());
                vdevs.insert(called.clone(), item.into());
                for (name, prop) in &props {
                    let known = VdevProp::from_name(name).map_or(name.len(), |p| width(p.info()).0);
                    widths.value = widths.value.max(known);
                    lines.push(self.row(called.clone(), name, prop));
                }
            }
            let mut about = super::pool_object(&view, &style);
            about.shift_remove("type");
            doc.insert("pool".into(), about.into());
            doc.insert("vdevs".into(), vdevs.into());
            Ok(Exit::OK)
        })?;
        if self.json.style.json {
            print(&mut *ctx.out, &Value::Object(doc))?;
            return Ok(exit);
        }
        lines.iter().for_each(|line| widths.fit(line));
        format.print(&mut *ctx.out, &widths, &lines)?;
        Ok(exit)
    }

    /// The vdevs that are meant, in the order of the command line and under the names that it has for them; with
    /// `all-vdevs` all, in the order of the pool's tree.
    #[doc(alias = "get_callback_vdev")]
    fn vdevs<'a>(
        &self,
        view: &'a PoolView<'a>,
        names: &[String],
        ctx: &mut Ctx,
    ) -> Result<Vec<(String, VdevView<'a>)>, Failure> {
        if names.iter().any(|name| name == "all-vdevs") {
            return Ok(get_vdev::all(view).into_iter().map(|vdev| (vdev.name(), vdev)).collect());
        }
        let mut found = Vec::new();
        for name in names {
            match get_vdev::all(view).into_iter().find(|vdev| vdev.is_called(name)) {
                Some(vdev) if name == "root" => found.push((vdev.name(), vdev)),
                Some(vdev) => found.push((name.clone(), vdev)),
                None => return Err(self.unresolved(view, names, ctx)),
            }
        }
        Ok(found)
    }

    /// The refusal of words that are not all vdevs of the pool; it lists the kind of each word.
    #[doc(alias = "error_list_unresolved_vdevs")]
    fn unresolved(&self, view: &PoolView<'_>, names: &[String], ctx: &mut Ctx) -> Failure {
        let pools = self.source.candidates(ctx);
        let is_in =
            |view: &PoolView<'_>, name: &str| get_vdev::all(view).iter().any(|vdev| vdev.is_called(name));
        let mut text = format!("Expected a list of vdevs in \"{}\", but got:\n", view.pool.name);
        for name in names {
            let mut is_elsewhere = || {
                let others = pools.iter().filter(|pool| pool.guid != view.pool.guid);
                others.into_iter().any(|other| {
                    let opened = self.source.open_candidate(other, ctx);
                    opened.is_ok_and(|pool| is_in(&PoolView::new(&pool, other, ctx), name))
                })
            };
            let what = match name {
                name if select(pools.clone(), name).is_ok() => "pool",
                name if is_in(view, name) => "vdev in this pool",
                _ if is_elsewhere() => "vdev in another pool",
                _ => "unknown",
            };
            text += &format!("\t{name} ({what})\n");
        }
        Failure::usage(text)
    }

    fn vdev_props(&self, vdev: &VdevView<'_>) -> Result<Vec<(String, Prop)>, Failure> {
        let mut props = Vec::new();
        for word in self.properties.split(',') {
            let bad = || Failure::usage(format!("bad property list: invalid property '{word}'"));
            match word {
                "all" if self.properties == "all" => props.extend(vdev.all()),
                // As in OpenZFS no line tells of a property that other vdevs have.
                word if vdev.lacks(word) => {}
                word => props.push(vdev.named(word).ok_or_else(bad)?),
            }
        }
        Ok(props)
    }

    fn format(&self) -> Result<GetFormat, Failure> {
        let mut format = GetFormat { scripted: self.lines.scripted, ..GetFormat::default() };
        if self.fields.iter().any(|f| f == "all") {
            return Ok(format);
        }
        if !self.fields.is_empty() {
            let known = |f: &String| GetColumn::parse(f).filter(|c| *c != GetColumn::Received);
            let bad = |f: &String| Failure::usage(format!("invalid column name '{f}'"));
            let columns = self.fields.iter().map(|f| known(f).ok_or_else(|| bad(f)));
            format.columns = columns.collect::<Result<_, _>>()?;
        }
        Ok(format)
    }

    fn props(&self, view: &PoolView<'_>) -> Result<Vec<(String, Prop)>, Failure> {
        let mut props = Vec::new();
        for word in self.properties.split(',') {
            let bad = || Failure::usage(format!("bad property list: invalid property '{word}'"));
            match word {
                "all" if self.properties == "all" => props.extend(view.all()),
                word if is_of_feature(word) => props.extend(view.named(word)),
                word => props.push(view.named(word).ok_or_else(bad)?),
            }
        }
        Ok(props)
    }

    fn row(&self, name: String, property: &str, prop: &Prop) -> GetRow {
        GetRow {
            name,
            property: property.to_owned(),
            value: prop.value(self.lines.literal).to_owned(),
            received: None,
            source: prop.source.clone(),
        }
    }
}
