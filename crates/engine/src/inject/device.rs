//! Faults and delays of a device, decided as a request enters its leaf.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ondisk::label::{LABEL_END_SIZE, LABEL_SIZE, LABEL_START_SIZE, LABELS, label_offset};
use parking_lot::Mutex;
use stdx::{AlignedBuf, Buf};

use super::delay::Timer;
use super::{Action, FaultError, Handler, Handlers, IoType};

/// `EIO`.
const EIO: i32 = 5;

/// Result of a request of a leaf.
type Done<T> = Box<dyn FnOnce(io::Result<T>) + Send>;

/// The handlers of one device.
#[derive(Debug, Default)]
pub struct LeafFaults {
    handlers: Handlers,
    timer: Mutex<Option<Arc<Timer>>>,
}

/// The decision of the handlers on one request.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    error: Option<FaultError>,
    /// Where a bit is flipped.
    flip: u64,
    until: Option<(Instant, Arc<Timer>)>,
}

/// A request of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceRequest {
    /// Its type.
    pub(crate) io: IoType,
    /// From the start of the device.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Bytes of the device.
    pub(crate) size: u64,
}

impl DeviceRequest {
    /// Whether it is in the labels.
    fn is_label(&self) -> bool {
        self.offset < LABEL_START_SIZE || self.offset >= self.size.saturating_sub(LABEL_END_SIZE)
    }

    /// Whether it touches bytes `start..=end` of a label.
    fn meets(&self, start: u64, end: u64) -> bool {
        self.is_label()
            && (0..LABELS).filter_map(|index| label_offset(self.size, index)).any(|label| {
                let end = end.min(LABEL_SIZE).saturating_add(label);
                self.offset <= end && self.offset.saturating_add(self.len) > label.saturating_add(start)
            })
    }
}

impl LeafFaults {
    /// Adds a handler.
    pub(crate) fn add(&self, handler: Arc<Handler>) {
        self.handlers.add(handler);
    }

    /// Removes a handler; whether it was there.
    pub(crate) fn remove(&self, id: u64) -> bool {
        self.handlers.remove(id)
    }

    /// The handlers, oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Handler>> {
        self.handlers.list()
    }

    /// Whether an open of the device fails.
    pub fn refuses_open(&self) -> bool {
        self.handlers.any()
            && self.handlers.all.read().iter().any(|handler| {
                matches!(handler.action, Action::Device { error: FaultError::Nxio, .. }) && handler.triggers()
            })
    }

    /// The error that a request of a probe meets.
    pub(crate) fn probe_error(&self) -> Option<io::Error> {
        if !self.handlers.any() {
            return None;
        }
        let fails = |handler: &Arc<Handler>| match handler.action {
            Action::Device { error: FaultError::Io | FaultError::Nxio, io: IoType::Probe } => {
                handler.triggers()
            }
            _ => false,
        };
        self.handlers.all.read().iter().any(fails).then(injected)
    }

    /// The decision on a request; `None`: nothing is injected.
    #[inline]
    pub(crate) fn decide(&self, request: impl FnOnce() -> DeviceRequest) -> Option<Decision> {
        if self.handlers.any() { self.judge(request()) } else { None }
    }

    fn judge(&self, request: DeviceRequest) -> Option<Decision> {
        let all = self.handlers.all.read();
        let mut decision = Decision { until: self.delay(&all, request.io), ..Decision::default() };
        for handler in all.iter() {
            let error = match handler.action {
                Action::Device { error, io } if acts(error, request) && io.matches(request.io) => error,
                Action::Label { error, start, end } if request.meets(start, end) => error,
                _ => continue,
            };
            if handler.triggers() {
                (decision.error, decision.flip) = (Some(error), handler.rng.lock().next_u64());
                break;
            }
        }
        (decision.error.is_some() || decision.until.is_some()).then_some(decision)
    }

    /// When the request ends at the earliest.
    #[expect(
        clippy::disallowed_methods,
        reason = "injected delays are of the machine's time; simulations have none"
    )]
    fn delay(&self, all: &[Arc<Handler>], io: IoType) -> Option<(Instant, Arc<Timer>)> {
        let mut best: Option<(Instant, &Arc<Handler>)> = None;
        for handler in all {
            let Action::Delay { latency, io: of, .. } = handler.action else { continue };
            if io == IoType::Flush || !of.matches(io) || !handler.triggers() {
                continue;
            }
            let Some(end) = handler.lanes.first(Instant::now(), latency) else { continue };
            if best.is_none_or(|(least, _)| end < least) {
                best = Some((end, handler));
            }
        }
        let (end, handler) = best?;
        handler.lanes.take(end);
        Some((end, Arc::clone(self.timer.lock().get_or_insert_default())))
    }
}

/// Whether a handler of a whole device with that error acts on such a request. Flushes have no offset; the labels stay
/// intact, so that the pool can be imported.
fn acts(error: FaultError, request: DeviceRequest) -> bool {
    let known = match error {
        FaultError::Io | FaultError::Nxio | FaultError::Noop => true,
        FaultError::Corrupt => request.io == IoType::Read,
        FaultError::Checksum | FaultError::Decompress | FaultError::Decrypt | FaultError::Dtl => false,
    };
    known && (request.io == IoType::Flush || !request.is_label())
}

/// The error of an injected fault.
fn injected() -> io::Error {
    io::Error::from_raw_os_error(EIO)
}

impl Decision {
    /// Does a read: `start` begins that of the device.
    pub(crate) fn read(self, len: u64, done: Done<Buf>, start: impl FnOnce(Done<Buf>)) {
        let (error, flip) = (self.error, self.flip);
        let done = self.late(done);
        match error {
            None => start(done),
            Some(FaultError::Noop) => done(Ok(AlignedBuf::zeroed(usize::try_from(len).unwrap_or(0)).into())),
            Some(FaultError::Corrupt) => {
                start(Box::new(move |result| done(result.map(|data| flipped(&data, flip)))));
            }
            Some(_) => done(Err(injected())),
        }
    }

    /// Does a write, flush or trim: `start` begins that of the device.
    pub(crate) fn write(self, done: Done<()>, start: impl FnOnce(Done<()>)) {
        let error = self.error;
        let done = self.late(done);
        match error {
            None => start(done),
            Some(FaultError::Noop) => done(Ok(())),
            Some(_) => done(Err(injected())),
        }
    }

    /// How long the completion is held back at least.
    #[expect(clippy::disallowed_methods, reason = "injected delays are of the machine's time")]
    pub(crate) fn delay(&self) -> Duration {
        self.until
            .as_ref()
            .map_or(Duration::ZERO, |(until, _)| until.saturating_duration_since(Instant::now()))
    }

    /// The completion, not before the time decided.
    fn late<T: Send + 'static>(self, done: Done<T>) -> Done<T> {
        match self.until {
            None => done,
            Some((until, timer)) => Box::new(move |result| timer.at(until, Box::new(move || done(result)))),
        }
    }
}

/// The bytes with one bit flipped.
fn flipped(data: &Buf, at: u64) -> Buf {
    let mut copy = AlignedBuf::copy_of(data);
    let bits = u64::try_from(copy.len()).unwrap_or(0).saturating_mul(8).max(1);
    let bit = at % bits;
    if let Some(byte) = usize::try_from(bit / 8).ok().and_then(|index| copy.get_mut(index)) {
        *byte ^= 1 << (bit % 8);
    }
    copy.into()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "injected delays are of the machine's time")]
mod tests {
    use super::*;
    use std::time::Duration;

    const SIZE: u64 = 64 << 20;

    fn at(io: IoType, offset: u64) -> DeviceRequest {
        DeviceRequest { io, offset, len: 4096, size: SIZE }
    }

    fn with(action: Action, frequency: u64) -> (LeafFaults, Arc<Handler>) {
        let (faults, handler) = (LeafFaults::default(), Handler::new(7, action, frequency, 1));
        faults.add(Arc::clone(&handler));
        (faults, handler)
    }

    fn device(error: FaultError, io: IoType) -> Action {
        Action::Device { error, io }
    }

    #[test]
    fn requests_of_other_types_labels_and_probes_pass() {
        let (faults, handler) = with(device(FaultError::Io, IoType::Write), 0);
        assert!(faults.decide(|| at(IoType::Read, 5 << 20)).is_none());
        assert!(faults.decide(|| at(IoType::Write, 0)).is_none(), "label");
        assert!(faults.decide(|| at(IoType::Write, SIZE - 4096)).is_none(), "label at the end");
        assert!(faults.probe_error().is_none() && !faults.refuses_open());
        assert_eq!(handler.counts(), [0, 0]);
        assert!(faults.decide(|| at(IoType::Write, 5 << 20)).is_some());
        assert_eq!(handler.counts(), [1, 1]);
        assert!(faults.remove(handler.id) && !faults.remove(handler.id));
        assert!(faults.decide(|| at(IoType::Write, 5 << 20)).is_none());
    }

    #[test]
    fn a_flush_fails_though_it_has_no_offset_and_a_probe_only_by_its_own_type() {
        let (faults, _) = with(device(FaultError::Io, IoType::All), 0);
        assert!(faults.decide(|| at(IoType::Flush, 0)).is_some());
        assert!(faults.probe_error().is_none());
        let (faults, _) = with(device(FaultError::Io, IoType::Probe), 0);
        assert!(faults.probe_error().is_some() && !faults.refuses_open());
        assert!(with(device(FaultError::Nxio, IoType::All), 0).0.refuses_open());
    }

    #[test]
    fn a_frequency_injects_that_share() {
        let (faults, handler) = with(device(FaultError::Io, IoType::Write), ALWAYS_HALF);
        (0..1000).for_each(|_| drop(faults.decide(|| at(IoType::Write, 5 << 20))));
        let [matched, injected] = handler.counts();
        assert!(matched == 1000 && (400..600).contains(&injected), "{injected} of {matched}");
    }

    const ALWAYS_HALF: u64 = super::super::ALWAYS / 2;

    #[test]
    fn a_part_of_the_label_fails_in_each_label_and_nowhere_else() {
        let uber = Action::Label { error: FaultError::Io, start: 128 << 10, end: (256 << 10) - 1 };
        let (faults, _) = with(uber, 0);
        for index in 0..LABELS {
            let label = label_offset(SIZE, index).unwrap();
            assert!(faults.decide(|| at(IoType::Write, label + (128 << 10))).is_some());
            assert!(faults.decide(|| at(IoType::Write, label + (16 << 10))).is_none());
        }
        assert!(faults.decide(|| at(IoType::Write, 5 << 20)).is_none());
    }

    fn read(faults: &LeafFaults) -> io::Result<Buf> {
        let (tell, told) = std::sync::mpsc::channel();
        let done: Done<Buf> = Box::new(move |result| tell.send(result).unwrap());
        let good = || Ok(AlignedBuf::zeroed(4096).into());
        match faults.decide(|| at(IoType::Read, 5 << 20)) {
            None => done(good()),
            Some(decision) => decision.read(4096, done, |done| done(good())),
        }
        told.recv().unwrap()
    }

    #[test]
    fn corrupt_flips_one_bit_and_io_fails() {
        let ones = |data: &Buf| data.iter().map(|byte| byte.count_ones()).sum::<u32>();
        let (faults, _) = with(device(FaultError::Corrupt, IoType::Read), 0);
        assert_eq!(ones(&read(&faults).unwrap()), 1);
        let (faults, _) = with(device(FaultError::Noop, IoType::Read), 0);
        assert_eq!(ones(&read(&faults).unwrap()), 0);
        let (faults, _) = with(device(FaultError::Io, IoType::Read), 0);
        assert_eq!(read(&faults).unwrap_err().raw_os_error(), Some(EIO));
    }

    #[test]
    fn a_delayed_request_ends_late() {
        let latency = Duration::from_millis(20);
        let (faults, handler) = with(Action::Delay { latency, lanes: 1, io: IoType::All }, 0);
        let start = Instant::now();
        assert!(read(&faults).is_ok() && read(&faults).is_ok());
        assert!(start.elapsed() >= 2 * latency);
        assert_eq!(handler.counts(), [2, 2]);
    }
}
