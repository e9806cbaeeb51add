//! Writing through the cache: what was just written is read from memory.

use std::sync::Arc;

use ondisk::Blkptr;
use parking_lot::Mutex;
use stdx::Buf;

use super::ArcCache;
use crate::error::Result;
use crate::taskq::{Executor, Promise};
use crate::zio::Form;
use crate::zio::write::WriteRequest;

/// Bytes of blocks that are on their way at once.
const WINDOW: usize = 32 << 20;

/// How much is on its way, and who waits until it is less.
#[derive(Debug, Default)]
struct Flow(Mutex<(usize, Option<Promise<()>>)>);

impl Flow {
    /// Waits while too much is on its way. Any end makes room: one slow device does not hold up the others.
    fn enter(&self, bytes: usize, executor: &dyn Executor) {
        let room = {
            let mut state = self.0.lock();
            state.0 = state.0.saturating_add(bytes);
            (state.0 > WINDOW && state.0 > bytes).then(|| state.1.get_or_insert_default().clone())
        };
        if let Some(room) = room {
            room.wait(executor);
        }
    }

    fn leave(&self, bytes: usize) {
        let mut state = self.0.lock();
        state.0 = state.0.saturating_sub(bytes);
        if state.0 <= WINDOW
            && let Some(room) = state.1.take()
        {
            drop(state);
            room.set(());
        }
    }
}

/// Writes many blocks and waits; pointers in the order of the requests. What was written is in the cache.
pub fn write_all(arc: &Arc<ArcCache>, requests: Vec<WriteRequest>) -> Vec<Result<Blkptr>> {
    let (zio, flow) = (arc.zio(), Arc::<Flow>::default());
    let mut promises: Vec<(Promise<Result<Blkptr>>, Buf)> = Vec::with_capacity(requests.len());
    for request in requests {
        let (promise, flow, data) = (Promise::default(), Arc::clone(&flow), request.data.clone());
        let (theirs, bytes) = (promise.clone(), data.len());
        flow.enter(bytes, &**zio.executor());
        let over = move |result| {
            flow.leave(bytes);
            theirs.set(result);
        };
        zio.write(request, Box::new(over));
        promises.push((promise, data));
    }
    let finish = |(promise, data): (Promise<Result<Blkptr>>, Buf)| {
        let result = promise.wait(&**zio.executor());
        if let Ok(bp) = &result {
            arc.insert(bp, Form::Logical, &data);
        }
        result
    };
    promises.into_iter().map(finish).collect()
}
