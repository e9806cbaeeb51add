//! One entry of a queue: its buffers, and the argument that nothing here uses them while the kernel does.
//!
//! A slot counts the users of its buffers. The kernel is the user while the count is 0. The reader of the ring makes it 2
//! when a request has arrived ([`Slot::arrived`]): one for the [`Body`], which lends the request's bytes, and one for the
//! [`Half`], through which the answer is given. Neither can be copied, and each subtracts itself once. Whichever is last
//! is alone with the buffers: it puts the answer into them and posts the commit ([`Slot::finish`]).
//!
//! An answer given while the request's payload may still be lent waits beside the buffers, because both use the same one;
//! a request without a payload (a read, above all) lends only its operation's fields, so its answer goes directly to
//! the payload buffer, which then only the half uses.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::queues::Queues;
use super::residence::Residence;
use super::{PAYLOAD, Ticket};
use crate::device::out_header;
use crate::header::{HEADER, Header};
use crate::words::Words;

/// Bytes before the payload: the headers, and the rest of their page.
const HEADERS: usize = 4096;
/// Bytes of the headers that the kernel uses.
#[doc(alias = "fuse_uring_req_header")]
const HEADERS_USED: usize = 288;
/// The place of the operation's fields, and their maximum.
const OP_AT: usize = 128;
const OP_LEN: usize = 128;
/// The places of the request's number for the commit and of the payload's length.
#[doc(alias = "fuse_uring_ent_in_out")]
const COMMIT_AT: usize = 264;
const LEN_AT: usize = 272;
/// The unit in which memory is returned to the system.
const PAGE: usize = 4096;

/// The memory of both buffers, taken from the system page by page as they are used.
#[derive(Debug)]
pub struct Memory {
    at: NonNull<u8>,
    residence: Residence,
    _ticket: Ticket,
}

// SAFETY: the mapping belongs to this value alone and has no thread affinity.
unsafe impl Send for Memory {}
// SAFETY: a shared reference gives the addresses only; the states of `Slot` determine which side uses them.
unsafe impl Sync for Memory {}

impl Memory {
    /// For one entry.
    pub fn new(ticket: Ticket) -> io::Result<Self> {
        let (len, access) = (HEADERS + PAYLOAD, libc::PROT_READ | libc::PROT_WRITE);
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at a place that the kernel chooses overlaps nothing.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast::<u8>()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { at, residence: Residence::default(), _ticket: ticket })
    }

    fn headers(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    fn payload(&self) -> *mut u8 {
        // SAFETY: the mapping has `HEADERS` and `PAYLOAD` bytes.
        unsafe { self.at.as_ptr().add(HEADERS) }
    }

    /// Returns the pages of the payload after its first `keep` bytes to the system, if entries hold too many.
    ///
    /// # Safety
    /// Nothing uses these bytes during the call, and their content is not needed any more.
    unsafe fn trim(&self, keep: usize) {
        let keep = keep.next_multiple_of(PAGE).min(PAYLOAD);
        if self.residence.is_excessive(keep) {
            // SAFETY: the range lies in the mapping; by the contract of this function its content is not needed, and later
            // uses find zeros.
            let trimmed = unsafe {
                libc::madvise(self.payload().add(keep).cast(), PAYLOAD - keep, libc::MADV_DONTNEED)
            };
            if trimmed == 0 {
                self.residence.trimmed(keep);
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the value made the mapping. A slot's ring owns the slot until the completion that ends the entry, after
        // which the kernel does not use the memory any more; bodies and halves own the slot, too.
        unsafe { libc::munmap(self.at.as_ptr().cast(), HEADERS + PAYLOAD) };
    }
}

/// An answer that waits for the end of the request.
#[derive(Debug, Default)]
struct Answer {
    unique: u64,
    error: i32,
    /// Bytes of the answer in the payload buffer, if they are there.
    placed: Option<usize>,
    /// Its bytes otherwise.
    bytes: Vec<u8>,
}

/// An entry.
pub struct Slot {
    memory: Memory,
    /// Read by the kernel when the entry is registered.
    buffers: [libc::iovec; 2],
    queues: Arc<Queues>,
    queue: u16,
    /// Its last request was one that was asked for.
    asked: AtomicBool,
    key: AtomicU64,
    /// Users of the buffers other than the kernel.
    users: AtomicU8,
    commit: AtomicU64,
    answer: Mutex<Answer>,
}

// SAFETY: the addresses in `buffers` are those of `memory`, which is `Send`.
unsafe impl Send for Slot {}
// SAFETY: accesses to the memory are ordered by `users`; everything else is synchronised.
unsafe impl Sync for Slot {}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("queue", &self.queue).field("users", &self.users).finish_non_exhaustive()
    }
}

impl Slot {
    /// A slot for a queue.
    pub fn new(queues: &Arc<Queues>, queue: u16, memory: Memory) -> Arc<Self> {
        let buffer = |at: *mut u8, len| libc::iovec { iov_base: at.cast(), iov_len: len };
        Arc::new(Self {
            buffers: [buffer(memory.headers(), HEADERS_USED), buffer(memory.payload(), PAYLOAD)],
            memory,
            queues: Arc::clone(queues),
            queue,
            asked: AtomicBool::new(false),
            key: AtomicU64::new(0),
            users: AtomicU8::new(0),
            commit: AtomicU64::new(0),
            answer: Mutex::default(),
        })
    }

    /// Its connection's queues.
    pub fn queues(&self) -> &Arc<Queues> {
        &self.queues
    }

    /// The queue's number.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Notes whether its present request was asked for; returns what the last note said.
    pub fn note_asked(&self, is_asked: bool) -> bool {
        self.asked.swap(is_asked, Ordering::Relaxed)
    }

    /// The number of the slot in its ring.
    pub fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// Sets it, before the slot is registered.
    pub fn set_key(&self, key: u64) {
        self.key.store(key, Ordering::Relaxed);
    }

    /// The number of the request whose answer is to be committed.
    pub fn commit(&self) -> u64 {
        self.commit.load(Ordering::Relaxed)
    }

    /// The buffers for the registration. They stay at their place as long as the slot exists.
    pub fn buffers(&self) -> *const libc::iovec {
        self.buffers.as_ptr()
    }

    /// A request has arrived: the kernel has completed the entry's command successfully. To be called once for each
    /// such completion. Returns `None` for a request that makes no sense, which is answered.
    pub fn arrived(self: &Arc<Self>) -> Option<(Header, Body, Half)> {
        self.users.store(2, Ordering::Release);
        self.queues.holds(self.queue);
        let mut body = Body { slot: Arc::clone(self), op: 0, payload: 0 };
        let half = Half(Some(Arc::clone(self)));
        // SAFETY: the kernel has passed the buffers to us with the completion; until `Body` and `Half` are gone nothing
        // writes to the headers. The mapping has more than these bytes, all initialised (a new mapping is zeros).
        let headers = unsafe { std::slice::from_raw_parts(self.memory.headers(), HEADERS_USED) };
        let read = |at: usize| Words::new(headers.get(at..).unwrap_or_default(), &[]);
        let commit = read(COMMIT_AT).u64().unwrap_or_default();
        self.commit.store(commit, Ordering::Relaxed);
        let (header, payload) = (Header::read(&mut read(0)), read(LEN_AT).u32());
        let lengths = || {
            let ((len, header), payload) = (header?, usize::try_from(payload?).ok()?);
            let op = usize::try_from(len).ok()?.checked_sub(HEADER)?.checked_sub(payload)?;
            (op <= OP_LEN && payload <= PAYLOAD).then_some((header, op, payload))
        };
        let Some((header, op, payload)) = lengths() else {
            half.send(commit, -libc::EIO, &[]);
            return None;
        };
        (body.op, body.payload) = (op, payload);
        self.memory.residence.used(payload);
        self.answer.lock().placed = (payload == 0).then_some(0);
        Some((header, body, half))
    }

    /// One user less. The last one finishes.
    fn release(self: &Arc<Self>) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish();
        }
    }

    /// Puts the answer into the buffers and posts it. Only the last user calls this.
    fn finish(self: &Arc<Self>) {
        let mut answer = self.answer.lock();
        let len = answer.placed.unwrap_or_else(|| {
            let bytes = &answer.bytes;
            // SAFETY: `send` has checked that the bytes fit into the payload; nothing else uses the buffers now.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.payload(), bytes.len()) };
            bytes.len()
        });
        self.memory.residence.used(len);
        // SAFETY: only the answer's bytes are needed from now on, and nothing else uses the buffers before the commit.
        unsafe { self.memory.trim(len) };
        answer.bytes.clear();
        let header = out_header(answer.unique, answer.error, len).unwrap_or_default();
        let length = u32::try_from(len).unwrap_or_default().to_ne_bytes();
        // SAFETY: both places lie in the headers; nothing else uses the buffers now.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), self.memory.headers(), header.len());
            std::ptr::copy_nonoverlapping(length.as_ptr(), self.memory.headers().add(LEN_AT), length.len());
        }
        drop(answer);
        Queues::given_back(self);
    }
}

/// A request's bytes in the buffers.
#[derive(Debug)]
pub struct Body {
    slot: Arc<Slot>,
    op: usize,
    payload: usize,
}

impl Body {
    /// The bytes after the header.
    pub fn words(&self) -> Words<'_> {
        let (op, payload) = (self.slot.memory.headers(), self.slot.memory.payload());
        // SAFETY: the lengths were checked against the buffers. While the body exists, the kernel does not use the buffers;
        // the half writes to neither piece: to the payload only if this request has none of it, and `from_raw_parts` of a
        // length of 0 refers to no byte.
        unsafe {
            Words::new(
                std::slice::from_raw_parts(op.add(OP_AT), self.op),
                std::slice::from_raw_parts(payload, self.payload),
            )
        }
    }

    /// Bytes of the request.
    pub fn len(&self) -> usize {
        HEADER + self.op + self.payload
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.slot.release();
    }
}

/// The way back of one request: answers once, or with an error when it is dropped.
#[derive(Debug)]
pub struct Half(Option<Arc<Slot>>);

impl Half {
    /// Gives the answer. One that does not fit becomes an error.
    pub fn send(mut self, unique: u64, error: i32, parts: &[&[u8]]) {
        self.give(unique, error, parts);
    }

    fn give(&mut self, unique: u64, error: i32, parts: &[&[u8]]) {
        let Some(slot) = self.0.take() else { return };
        let len = parts.iter().map(|part| part.len()).fold(0, usize::saturating_add);
        let (parts, error) = if len <= PAYLOAD { (parts, error) } else { (&[][..], -libc::EIO) };
        let mut answer = slot.answer.lock();
        (answer.unique, answer.error) = (unique, error);
        if answer.placed.is_some() {
            let mut at = 0;
            for part in parts {
                // SAFETY: all parts together fit into the payload, which nothing else uses: the request has none.
                unsafe {
                    std::ptr::copy_nonoverlapping(part.as_ptr(), slot.memory.payload().add(at), part.len())
                };
                at += part.len();
            }
            answer.placed = Some(at);
        } else {
            answer.bytes.clear();
            parts.iter().for_each(|part| answer.bytes.extend_from_slice(part));
        }
        drop(answer);
        slot.release();
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        if let Some(slot) = &self.0 {
            let unique = slot.commit();
            self.give(unique, -libc::EIO, &[]);
        }
    }
}
