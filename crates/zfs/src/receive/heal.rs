//! `zfs receive -c`: a stream repairs damaged blocks of the snapshot that it was made of.
//!
//! Source: `zfs_receive_one`, libzfs_sendrecv.c, OpenZFS 2.4.

use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::target::Target;
use clikit::verb::Failure;
use engine::recv::Input;
use engine::recv::Wish;
use engine::{Error, Kind};
use ondisk::drr::DrrBegin;

use super::place::Place;
use super::{Receive, failed};

impl Receive {
    /// Whether the stream is one of the snapshot that it is to repair.
    pub(super) fn check_healed(
        &self,
        begin: &DrrBegin,
        place: &Place,
        target: &Target,
        ctx: &Ctx,
    ) -> Result<(), Failure> {
        let refuse = |what: &str| Err(failed(place.action, what));
        // Receives of users other than the owner never mount.
        let unmounted = self.unmounted && ctx.session()?.delegated.is_none();
        if self.without_pool || self.last_part || self.force || self.resumable || unmounted || self.no_holds {
            return refuse("corrective recv can not be used when combined with this flag");
        }
        let _quiet = target.pool.quiet();
        match target.view.dsl.dataset(&place.whole()) {
            Err(e) if e.kind() == Kind::NotFound => {
                refuse("corrective recv must specify an existing snapshot to heal")
            }
            Err(e) => Err(failed(place.action, why(&e))),
            Ok(snapshot) if snapshot.phys.guid != begin.toguid => {
                refuse("local snapshot doesn't match the snapshot in the provided stream")
            }
            Ok(_) => Ok(()),
        }
    }
}

/// Repairs the snapshot with the rest of the stream.
pub(super) fn run(
    wish: &Wish,
    (place, target): (&Place, &Target),
    input: &mut Input<'_>,
    ctx: &Ctx,
) -> Result<(), Failure> {
    let spa = target.pool.spa()?;
    let interrupt = ctx.interrupt.clone();
    let done = engine::recv::heal(spa, wish, input, &mut |_| !interrupt.is_set());
    match done {
        Ok(_) => Ok(()),
        Err(_) if interrupt.is_set() => Err(Failure::Interrupted),
        Err(e) => Err(failed(place.action, sentence(&e))),
    }
}

/// OpenZFS's message for an error, with the cause.
fn sentence(e: &Error) -> String {
    let unable = "corrective receive was not able to reconstruct the data needed for healing.";
    match e.kind() {
        Kind::NoSpace | Kind::Suspended | Kind::ReadOnly => why(e),
        Kind::Checksum | Kind::Io | Kind::Corrupt if !e.what().contains(unable) => {
            format!("{unable}\n({})", e.what())
        }
        _ => e.what().to_owned(),
    }
}
