//! Streams that break off and are resumed, also those that OpenZFS began to receive.

use engine::dsl::props::resume;
use engine::send::{From, Meter, Saved, SendFlags, SendOptions, send_with};
use engine::spa::Pool;
use nvpair::NvList;
use ondisk::drr::DrrBody;
use testkit::golden;
use testkit::pools::{copy, import_dir};
use testkit::zdb::Judge;

use crate::golden::{assert_holds, assert_same, read};
use crate::tools::{Place, receive_into, stream};

/// Where records begin in a stream.
fn boundaries(stream: &[u8]) -> Vec<usize> {
    let mut from = stream;
    let mut input = engine::recv::Input::new(&mut from);
    let mut all = Vec::new();
    while let Some(item) = input.record().expect("a record") {
        all.push(usize::try_from(item.offset).unwrap());
        if matches!(item.drr.body, DrrBody::End(_)) {
            break;
        }
    }
    all
}

/// The rest of a stream, as a token asks for it.
fn rest(source: &Pool, to: &str, flags: SendFlags, state: &NvList) -> Vec<u8> {
    let at = (state.u64("object").unwrap(), state.u64("offset").unwrap());
    let options = SendOptions { flags, resume: Some(at), ..SendOptions::default() };
    let mut out = Vec::new();
    send_with(&source.dsl.dataset(to).unwrap(), &options, &mut out, &Meter::default()).expect("the rest");
    out
}

fn state(pool: &Pool, name: &str) -> Option<NvList> {
    resume::state(&pool.dsl.dataset(name).expect("a dataset")).expect("its state")
}

/// Receives in pieces: each stream is cut at the record after a share of it, and the next one continues.
fn in_pieces(pool: &str, file: &str, to: &str, flags: SendFlags) {
    let Some(golden) = golden::get(pool) else { return };
    let whole = read(&golden, file);
    let source = golden.open_with_keys(engine::spa::OpenOptions::default()).expect("the sender's pool");
    let mut place = Place::new();
    let mut next = whole.clone();
    for round in 1..=4 {
        let cuts = boundaries(&next);
        // Once within a record.
        let cut = cuts[cuts.len() * round / 5] + if round == 2 { 100 } else { 0 };
        let failed = place.receive(&next[..cut], "ours/part@s", &|wish| wish.resumable = true);
        assert!(failed.is_err(), "a part is not the whole");
        let spa = place.spa();
        spa.sync().unwrap();
        let state = state(&spa.view().unwrap(), "ours/part").expect("it can go on");
        next = rest(&source, to, flags, &state);
        assert!(next.len() <= whole.len() + 2000, "what came need not come again");
    }
    place.receive(&next, "ours/part@s", &|wish| wish.resumable = true).expect("the rest");
    let opened = place.exported();
    assert!(state(&opened, "ours/part").is_none(), "nothing is left to go on with");
    assert_same(&stream(&opened, "ours/part@s", None, flags), &whole);
}

#[test]
fn a_stream_that_was_cut_goes_on_to_the_same_end() {
    in_pieces("streams", "full-a", "tank/src@a", SendFlags::default());
}

#[test]
fn a_raw_stream_that_was_cut_goes_on_to_the_same_end() {
    in_pieces("encrypted", "raw-pass", "tank/pass@s", SendFlags { raw: true, ..SendFlags::default() });
}

/// The kernel's OpenZFS received a part, we receive the rest.
#[test]
fn a_receive_that_openzfs_began_is_finished() {
    let Some(golden) = golden::get("streams") else { return };
    let source = golden.open().expect("the sender's pool");
    let dir = tempfile::tempdir().unwrap();
    copy(&golden.dir, dir.path());
    let spa = import_dir(dir.path(), "tank").expect("imported");
    let heads = source.dsl.walk(source.dsl.dir("tank").unwrap()).filter_map(Result::ok);
    let partial = heads.filter_map(|dir| dir.head().ok()).find(|head| head.is_inconsistent());
    let partial = partial.expect("a partly received dataset").name;
    let state = state(&source, &partial).expect("it can go on");
    let guid = state.u64("toguid").unwrap();
    let all = source.dsl.dataset("tank/src").unwrap().snapshots().unwrap();
    let snapshot = all.iter().find(|snapshot| snapshot.phys.guid == guid).expect("what was sent");
    let rest = rest(&source, &snapshot.name, SendFlags::default(), &state);
    let part = snapshot.name.split_once('@').unwrap().1;
    receive_into(&spa, &rest, &format!("{partial}@{part}"), &|wish| wish.resumable = true).expect("the rest");
    spa.export().expect("exported");
    drop(spa);
    for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
        judge.verify(dir.path(), "tank").expect("a whole pool");
    }
    let opened = crate::tools::open(dir.path(), "tank");
    assert_holds(&opened, &golden, &format!("at-{part}"), &format!("{partial}@{part}"));
    let plain = SendFlags::default();
    assert_same(
        &stream(&opened, &format!("{partial}@{part}"), None, plain),
        &stream(&source, &snapshot.name, None, plain),
    );
}

/// Cuts a stream at the beginning of each record and once within each, goes on with the rest, and sends the result again.
fn at_every_record((pool, file): (&str, &str), (to, from): (&str, Option<&str>), flags: SendFlags) {
    let Some(golden) = golden::get(pool) else { return };
    let whole = read(&golden, file);
    let source = golden.open_with_keys(engine::spa::OpenOptions::default()).expect("the sender's pool");
    let from = from.map(|name| From::snapshot(&source.dsl.dataset(name).unwrap()).unwrap());
    let mut place = Place::new();
    let all = boundaries(&whole);
    let ends = all.iter().skip(1).copied().chain([whole.len()]);
    let cuts: Vec<usize> = all.iter().zip(ends).flat_map(|(at, end)| [*at, at + (end - at) / 2]).collect();
    let (base, mut resumed) = ("ours/base", 0);
    if from.is_some() {
        place.receive(&read(&golden, "full-a"), &format!("{base}@a"), &|_| ()).expect("the base");
    }
    for (number, cut) in cuts.iter().enumerate() {
        let full = format!("ours/part{number}");
        let (dataset, filled, old) = match from {
            Some(_) => (base, "ours/base/%recv", Some("ours/base@a")),
            None => (full.as_str(), full.as_str(), None),
        };
        let target = format!("{dataset}@s");
        // The content of the last round gives way.
        let wish = |wish: &mut engine::recv::Wish| (wish.resumable, wish.force) = (true, old.is_some());
        place.receive(&whole[..*cut], &target, &wish).expect_err("a part is not the whole");
        let spa = place.spa();
        spa.sync().unwrap();
        let left = spa.pool.dsl.dataset(filled).ok().and_then(|head| resume::state(&head).unwrap());
        let rest = match left {
            Some(state) => {
                let at = (state.u64("object").unwrap(), state.u64("offset").unwrap());
                let options = SendOptions {
                    flags,
                    from: from.clone(),
                    resume: (at != (0, 0)).then_some(at),
                    ..SendOptions::default()
                };
                let mut out = Vec::new();
                send_with(&source.dsl.dataset(to).unwrap(), &options, &mut out, &Meter::default())
                    .expect("the rest");
                resumed += 1;
                out
            }
            None => whole.clone(),
        };
        place.receive(&rest, &target, &wish).unwrap_or_else(|e| panic!("cut at {cut}: {e}"));
        assert_same(&stream(&place.spa().view().unwrap(), &target, old, flags), &whole);
        let gone = [Some(target.clone()), old.is_none().then(|| full.clone())];
        for name in gone.into_iter().flatten() {
            place.spa().dsl_task(move |tasks| tasks.destroy(&name, false)).unwrap();
        }
    }
    println!("{file}: {} cuts, {resumed} continued", cuts.len());
    assert!(resumed + 4 >= cuts.len(), "{resumed} of {}", cuts.len());
    place.exported();
}

#[test]
#[ignore = "minutes"]
fn a_full_stream_goes_on_from_every_record() {
    at_every_record(("streams", "full-a"), ("tank/src@a", None), SendFlags::default());
}

#[test]
#[ignore = "minutes"]
fn an_incremental_stream_goes_on_from_every_record() {
    let (to, from) = ("tank/src@b", Some("tank/src@a"));
    at_every_record(("streams", "incr-a-b"), (to, from), SendFlags::default());
}

#[test]
#[ignore = "minutes"]
fn a_raw_stream_goes_on_from_every_record() {
    let flags = SendFlags { raw: true, ..SendFlags::default() };
    at_every_record(("raw-received", "raw-a"), ("tank/r@a", None), flags);
}

/// The stream of a partial receive ends where that receive stopped: another pool goes on from there and lacks nothing.
#[test]
fn a_saved_stream_ends_where_its_receive_stopped() {
    let Some(golden) = golden::get("streams") else { return };
    let source = golden.open().expect("the sender's pool");
    let from = |pool: &Pool, name: &str| Some(From::snapshot(&pool.dsl.dataset(name).unwrap()).unwrap());
    let send = |pool: &Pool, to: &str, options: &SendOptions| {
        let mut out = Vec::new();
        send_with(&pool.dsl.dataset(to).unwrap(), options, &mut out, &Meter::default()).expect("a stream");
        out
    };
    let at = |state: &NvList| (state.u64("object").unwrap(), state.u64("offset").unwrap());
    let (full, more) = (read(&golden, "full-a"), read(&golden, "incr-a-b"));
    let cuts = boundaries(&more);
    let mut place = Place::new();
    for part in 1..4 {
        let (second, third) = (format!("ours/second{part}"), format!("ours/third{part}"));
        for target in [&second, &third] {
            place.receive(&full, &format!("{target}@a"), &|_| ()).unwrap();
        }
        let cut = &more[..cuts[cuts.len() * part / 4]];
        place.receive(cut, &format!("{second}@b"), &|wish| wish.resumable = true).unwrap_err();
        let pool = &place.spa().view().unwrap();
        let reached = state(pool, &format!("{second}/%recv")).expect("it can go on");
        let toguid = reached.u64("toguid").unwrap();
        let saved = Some(Saved { toguid, toname: "tank/src@b".into(), place: at(&reached) });
        let options =
            SendOptions { from: from(pool, &format!("{second}@a")), saved, ..SendOptions::default() };
        let saved = send(pool, &format!("{second}/%recv"), &options);
        place.receive(&saved, &format!("{third}@b"), &|wish| wish.resumable = true).unwrap_err();
        let again = state(pool, &format!("{third}/%recv")).expect("it can go on");
        assert!(at(&again) <= at(&reached), "{:?} behind {:?}", at(&again), at(&reached));
        let options = SendOptions {
            from: from(&source, "tank/src@a"),
            resume: Some(at(&again)),
            ..SendOptions::default()
        };
        let rest = send(&source, "tank/src@b", &options);
        place.receive(&rest, &format!("{third}@b"), &|wish| wish.resumable = true).expect("the rest");
    }
    let opened = place.exported();
    let plain = SendFlags::default();
    let whole = stream(&source, "tank/src@b", None, plain);
    for part in 1..4 {
        assert_same(&stream(&opened, &format!("ours/third{part}@b"), None, plain), &whole);
    }
}
