//! Writing through the cache: what was just written is read from memory.

use std::sync::Arc;

use ondisk::Blkptr;

use super::ArcCache;
use crate::error::Result;
use crate::taskq::Promise;
use crate::zio::Form;
use crate::zio::write::WriteRequest;

/// Bytes of blocks that are on their way at once.
const WINDOW: usize = 64 << 20;

/// Writes many blocks and waits; pointers in the order of the requests. What was written is in the cache.
pub fn write_all(arc: &Arc<ArcCache>, requests: Vec<WriteRequest>) -> Vec<Result<Blkptr>> {
    let zio = arc.zio();
    let mut results = Vec::with_capacity(requests.len());
    let mut rest = requests.into_iter().peekable();
    while rest.peek().is_some() {
        let (mut bytes, mut promises) = (0, Vec::new());
        while bytes < WINDOW
            && let Some(request) = rest.next()
        {
            bytes += request.data.len();
            let promise = Promise::default();
            let theirs = promise.clone();
            let data = request.data.clone();
            zio.write(request, Box::new(move |result| theirs.set(result)));
            promises.push((promise, data));
        }
        for (promise, data) in promises {
            let result: Result<Blkptr> = promise.wait(&**zio.executor());
            if let Ok(bp) = &result {
                arc.insert(bp, Form::Logical, &data);
            }
            results.push(result);
        }
    }
    results
}
