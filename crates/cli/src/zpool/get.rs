//! `zpool get`: properties of pools, one a line.

use clap::Args;
use serde_json::{Map, Value};
use zcommon::props::ZpoolProp;

use super::prop::PoolView;
use crate::ctx::Ctx;
use crate::output::get::{GetColumn, GetFormat, GetRow, GetWidths};
use crate::output::json::{JsonStyle, document, print};
use crate::output::row::Prop;
use crate::output::value::width;
use crate::source::PoolSource;
use crate::verb::{Exit, Failure, Outcome, Verb};

/// Print properties of pools.
#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    /// No header, tabs between columns.
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers.
    #[arg(short = 'p')]
    pub literal: bool,
    /// Print JSON.
    #[arg(short = 'j', long = "json")]
    pub json: bool,
    /// Numbers as numbers in JSON.
    #[arg(long = "json-int", requires = "json")]
    pub json_int: bool,
    /// Pools by guid in JSON.
    #[arg(long = "json-pool-key-guid", requires = "json")]
    pub json_pool_key_guid: bool,
    /// Columns to print, comma separated: name, property, value, source, all.
    #[arg(short = 'o', value_name = "FIELD,…", value_delimiter = ',')]
    pub fields: Vec<String>,
    /// Properties, comma separated, or `all`.
    #[arg(value_name = "PROPERTY,…")]
    pub properties: String,
    /// Pools; all that are found, without any.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

impl Verb for Get {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let format = self.format()?;
        let mut widths = GetWidths::default();
        let mut lines = Vec::new();
        let mut pools = Map::new();
        let style =
            JsonStyle { int: self.json_int, pool_key_guid: self.json_pool_key_guid, ..JsonStyle::default() };
        let exit = self.source.each(&self.pools, ctx, |pool, candidate, ctx| {
            let view = PoolView::new(pool, candidate, ctx);
            let props = self.props(&view)?;
            let mut item = super::pool_object(&view, &style);
            let values = props.iter().map(|(n, p)| (n.clone(), style.prop(p, self.literal || self.json_int)));
            item.insert("properties".into(), Map::from_iter(values).into());
            pools.insert(super::pool_key(&view, &style), item.into());
            lines.extend(props.iter().map(|(name, prop)| self.line(&view, name, prop)));
            Ok(Exit::OK)
        })?;
        if self.json {
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
    fn format(&self) -> Result<GetFormat, Failure> {
        let mut format = GetFormat { scripted: self.scripted, ..GetFormat::default() };
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
                "all" => props.extend(view.all()),
                word => props.push(view.named(word).ok_or_else(bad)?),
            }
        }
        Ok(props)
    }

    fn line(&self, view: &PoolView<'_>, property: &str, prop: &Prop) -> GetRow {
        GetRow {
            name: view.pool.name.clone(),
            property: property.to_owned(),
            value: prop.value(self.literal).to_owned(),
            received: None,
            source: prop.source.clone(),
        }
    }
}
