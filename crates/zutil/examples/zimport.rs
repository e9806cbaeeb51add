use zutil::import_listing::*;
fn main() {
    let mut dirs = vec![];
    let mut destroyed = false;
    for a in std::env::args().skip(1) {
        if a == "-D" { destroyed = true } else { dirs.push(a.into()) }
    }
    let found = zutil::discover(&dirs);
    for s in &found.skipped {
        eprintln!("skipped {} {}", s.path.display(), s.why);
    }
    let pools = zutil::search(&found.devices);
    let options = ListingOptions { hostid: zutil::import_status::system_hostid(), ..Default::default() };
    let env = engine::env::Env::system(64 << 20).unwrap();
    let mut first = true;
    for p in &pools {
        for n in &p.notes {
            eprintln!("note {n}");
        }
        let oc = zutil::load::load(&env, p);
        let l = Listing::new(p, &oc, options);
        if p.is_destroyed() != destroyed {
            continue;
        }
        if !first {
            println!()
        }
        first = false;
        print!("{l}");
    }
    if first {
        println!("no pools available to import");
    }
}
