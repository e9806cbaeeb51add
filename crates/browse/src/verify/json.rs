//! The report as JSON.

use std::io;

use clikit::ctx::Ctx;
use clikit::output::json::{JsonStyle, document, print as print_value};
use engine::scan::space::SpaceRange;
use engine::scan::stats::{Row, Sums};
use engine::scan::verify::Remedy;
use engine::spa::Pool;
use serde_json::{Map, Value, json};

use super::places::Line;
use super::{Findings, Verify};

/// Prints the report.
pub(super) fn print(verify: &Verify, pool: &Pool, findings: &Findings, ctx: &mut Ctx) -> io::Result<()> {
    let Findings { report, places, logs } = findings;
    let style = JsonStyle { int: verify.json_int, ..JsonStyle::default() };
    let account = &report.account;
    let number = |n: u64| style.number(n);
    let mut types = Map::new();
    for row in Row::all() {
        let sums = account.stats.sum(|r, _| r == row);
        if sums.count > 0 {
            types.insert(row.name().to_owned(), counted(style, &sums));
        }
    }
    let classes = &account.classes;
    let class = |c: engine::scan::account::ClassUse| json!({ "used": number(u64::try_from(c.alloc).unwrap_or(0)), "size": number(c.space) });
    let mut doc = document("aquifer verify");
    doc.insert("pool".into(), json!(pool.name));
    doc.insert("pool_guid".into(), number(pool.guid));
    doc.insert("state".into(), json!(state(findings)));
    doc.insert("stopped".into(), json!(account.stopped));
    doc.insert("damage".into(), places.lines.iter().map(|l| damaged(style, l)).collect());
    let unreadable =
        account.unreadable.iter().map(|(at, e)| json!({ "at": at.to_string(), "why": e.to_string() }));
    doc.insert("unreadable".into(), unreadable.collect());
    let logs = logs.iter().map(|log| json!({ "dataset": log.dataset, "why": log.why.to_string() }));
    doc.insert("logs".into(), logs.collect());
    let derived = report.derived.iter();
    let derived = derived.map(|d| json!({ "what": d.what.to_string(), "why": d.why.to_string() }));
    doc.insert("rebuildable".into(), derived.collect());
    let absent = report.absent.iter().map(|(leaf, absent)| {
        let name = pool.tree().leaf_name(*leaf, 0);
        json!({ "vdev": name, "guid": number(*leaf), "stale": absent.stale, "blocks": number(absent.blocks) })
    });
    doc.insert("missing".into(), absent.collect());
    doc.insert("lost_blocks".into(), number(report.lost_blocks));
    doc.insert("repairable_blocks".into(), number(report.repairable_blocks));
    doc.insert("blocks_read".into(), number(report.blocks_read));
    doc.insert("bytes_read".into(), number(report.bytes_read));
    doc.insert("types".into(), Value::Object(types));
    doc.insert("total".into(), counted(style, &account.stats.total()));
    doc.insert("deduped".into(), number(account.stats.dedup_asize));
    doc.insert("cloned".into(), number(account.stats.clone_asize));
    doc.insert(
        "classes".into(),
        json!({
            "normal": class(classes.normal), "special": class(classes.special), "dedup": class(classes.dedup),
            "log": class(classes.log), "embedded_log": class(classes.embedded_log),
        }),
    );
    if let Some(space) = &account.space {
        let runs = |runs: &[SpaceRange]| -> Value {
            let run = |r: &SpaceRange| json!({ "vdev": number(r.vdev), "offset": number(r.offset), "size": number(r.size) });
            runs.iter().map(run).collect()
        };
        let balances = account.balances();
        doc.insert(
            "space".into(),
            json!({
                "matches": balances && space.is_clean(), "leaked": runs(&space.leaked),
                "used_twice": runs(&space.doubled), "not_allocated": runs(&space.unallocated),
            }),
        );
    }
    print_value(&mut ctx.out, &Value::Object(doc))
}

fn state(findings: &Findings) -> &'static str {
    match (findings.is_lost(), findings.report.is_damaged()) {
        (true, _) => "lost",
        (false, true) => "damaged",
        (false, false) => "well",
    }
}

fn counted(style: JsonStyle, sums: &Sums) -> Value {
    json!({
        "blocks": style.number(sums.count), "lsize": style.number(sums.lsize),
        "psize": style.number(sums.psize), "asize": style.number(sums.asize), "gangs": style.number(sums.gangs),
    })
}

fn damaged(style: JsonStyle, line: &Line) -> Value {
    let remedy = (line.remedy != Remedy::Lost).then(|| line.remedy.name());
    json!({
        "dataset": line.dataset, "file": line.file, "object": style.number(line.object), "what": line.level,
        "from": style.number(line.start), "to": style.number(line.end), "blocks": style.number(line.blocks),
        "vdevs": line.vdevs, "repairable_from": remedy,
    })
}
