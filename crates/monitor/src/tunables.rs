//! `aquifer get` and `aquifer set`: memory limits, under the names of OpenZFS's module parameters.
//!
//! With a daemon they are its own, and take effect at once. Without one, the values of the settings file are shown.

use std::sync::Arc;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::listing::{Json, Lines};
use clikit::output::json::{JsonStyle, document, print};
use clikit::output::table::{Column, Table};
use clikit::session::Home;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::conf;
use daemon::paths::RunPaths;
use engine::memory::limits::{Info, LIMITS, MINUS_ONE};
use engine::memory::{Limit, Memory};
use serde_json::{Map, json};
use zcommon::units::nicebytes;

/// Show settings of the daemon.
#[derive(Debug, Args)]
pub struct Get {
    /// The format of lines.
    #[command(flatten)]
    pub lines: Lines,
    /// JSON instead of lines.
    #[command(flatten)]
    pub json: Json,
    /// Describe the settings.
    #[arg(short = 'd', long = "description")]
    pub description: bool,
    /// Settings; without any, all of them.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
}

/// Change settings of the daemon, effective at once.
#[derive(Debug, Args)]
pub struct Set {
    /// Write them to the settings file, too, for the next daemon.
    #[arg(short = 's', long = "save")]
    pub save: bool,
    /// Settings: zfs_arc_max=4G. A value of 0 restores the default.
    #[arg(value_name = "NAME=VALUE", required = true)]
    pub settings: Vec<String>,
}

/// The memory settings of the daemon, if this process is one.
fn running(ctx: &Ctx) -> Option<Arc<Memory>> {
    ctx.session.as_ref().map(|session| Arc::clone(&session.registry.memory))
}

impl Get {
    /// The process in which it runs.
    pub fn home(&self) -> Home {
        Home::Pools
    }
}

impl Set {
    /// The process in which it runs.
    pub fn home(&self) -> Home {
        Home::Pools
    }
}

fn chosen(names: &[String]) -> Result<Vec<&'static Info>, Failure> {
    if names.is_empty() || names == ["all"] {
        return Ok(LIMITS.iter().collect());
    }
    let unknown = |name: &String| Failure::usage(format!("there is no setting '{name}'"));
    names.iter().map(|name| Limit::from_name(name).map(Limit::info).ok_or_else(|| unknown(name))).collect()
}

impl Verb for Get {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let infos = chosen(&self.names)?;
        let memory = running(ctx).unwrap_or_else(|| daemon::memory::of_place(&RunPaths::of_process()));
        let limits = &memory.limits;
        let source = |info: &Info| if limits.stored(info.limit) == 0 { "default" } else { "local" };
        if self.json.json {
            let style = JsonStyle { int: self.json.json_int, ..JsonStyle::default() };
            let setting = |info: &&Info| {
                let value = limits.get(info.limit);
                let value = match value {
                    MINUS_ONE if self.json.json_int => json!(-1),
                    MINUS_ONE => json!(info.digits(value)),
                    number => style.number(number),
                };
                (info.name.to_owned(), json!({ "value": value, "source": source(info) }))
            };
            let mut doc = document(&ctx.command);
            doc.insert("settings".into(), infos.iter().map(setting).collect::<Map<_, _>>().into());
            print(&mut *ctx.out, &doc.into())?;
            return Ok(Exit::OK);
        }
        let mut columns =
            vec![Column::new("NAME", false), Column::new("VALUE", true), Column::new("SOURCE", false)];
        if self.description {
            columns.push(Column::new("DESCRIPTION", false));
        }
        let mut table = Table::new(columns);
        for info in infos {
            let value = limits.get(info.limit);
            let text = if info.bytes && !self.lines.literal {
                nicebytes(value).to_string()
            } else {
                info.digits(value)
            };
            let mut row = vec![info.name.to_owned(), text, source(info).to_owned()];
            if self.description {
                row.push(info.about.to_owned());
            }
            table.push(row);
        }
        table.print(&mut *ctx.out, self.lines.scripted)?;
        Ok(Exit::OK)
    }
}

impl Verb for Set {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let place = RunPaths::of_process();
        let memory = running(ctx);
        if memory.is_none() && !self.save {
            let file = place.conf.display();
            return Err(Failure::failed(format!(
                "no daemon is running; --save writes {file} for the next one"
            )));
        }
        // If one of them is invalid none is set.
        let trial = Memory::new(engine::memory::Limits::default());
        let parse = |word: &String| {
            conf::parse(word)
                .and_then(|(limit, value)| trial.limits.set(limit, value).map(|()| (limit, value)))
        };
        let settings: Vec<_> =
            self.settings.iter().map(parse).collect::<Result<_, _>>().map_err(Failure::failed)?;
        let shrinks = settings.iter().any(|(limit, _)| *limit == Limit::ArcMax);
        for (limit, value) in settings {
            if let Some(memory) = &memory {
                memory.set(limit, value).map_err(Failure::failed)?;
            }
            if self.save {
                let cannot = |e| Failure::failed(format!("{} cannot be written: {e}", place.conf.display()));
                conf::save(&place.conf, limit, value).map_err(cannot)?;
            }
        }
        if memory.is_some() && shrinks {
            stdx::os::release_memory();
        }
        Ok(Exit::OK)
    }
}
