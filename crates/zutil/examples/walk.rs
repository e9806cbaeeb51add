use engine::env::Env;
use std::path::PathBuf;
fn main() {
    let dir = PathBuf::from(std::env::args().nth(1).unwrap());
    let name = std::env::args().nth(2).unwrap();
    let env = Env::system(64 << 20).unwrap();
    let pool = match zutil::open::open_pool(&env, &[dir], &name, Default::default()) {
        Ok(p) => p,
        Err(e) => {
            println!("ERR {e}");
            return;
        }
    };
    println!("txg {} notes {:?}", pool.uberblock.txg, pool.notes);
    for d in pool.dsl.walk(pool.dsl.root().unwrap()) {
        match d {
            Ok(d) => {
                let h = d.head();
                println!("{} {:?}", d.name, h.as_ref().map(|h| h.kind().map_err(|e| e.to_string())));
                if let Ok(h) = h {
                    for s in h.snapshots().unwrap() {
                        println!("  {}", s.name);
                    }
                    if let Ok(os) = h.objset() {
                        let (mut n, mut bytes, mut bad) = (0, 0u64, 0);
                        for o in os.objects() {
                            match o {
                                Ok(o) => {
                                    n += 1;
                                    let mut b = 0;
                                    while let Ok(Some(x)) = o.next_block(b) {
                                        match o.block(x) {
                                            Ok(buf) => bytes += buf.len() as u64,
                                            Err(e) => {
                                                bad += 1;
                                                println!("   {e}")
                                            }
                                        }
                                        b = x + 1;
                                    }
                                }
                                Err(e) => {
                                    bad += 1;
                                    println!("   {e}")
                                }
                            }
                        }
                        println!("   objects {n} bytes {bytes} bad {bad}");
                    }
                }
            }
            Err(e) => println!("ERR {e}"),
        }
    }
}
