//! The way of events from the daemon that owns the pools to this process.
//!
//! ```text
//! request: FOLLOW, epoch and number of the last event        answer on standard output: records, each a length
//! (u32 LE) and an nvlist (XDR) with one of: epoch · event · missed
//! ```
//!
//! The epoch distinguishes daemons: within one the numbers of events grow. A request with the epoch of the daemon gets the
//! events after that number, any other request gets all kept events.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use daemon::events::Reader;
use daemon::paths::RunPaths;
use daemon::{Call, client};
use nvpair::NvList;

/// The word of the request.
const FOLLOW: &str = "events-of-pools";
/// Interval of checks for new events in the daemon.
const POLL: Duration = Duration::from_millis(50);
/// Interval of checks for a daemon.
const AGAIN: Duration = Duration::from_millis(250);
/// Maximum bytes of a record.
const MAX: usize = 1 << 20;
/// News that wait for zedlets; more stay in the daemon, which drops the oldest first.
const WAITING: usize = 16;

/// An event, with the parts that every event has.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its number.
    pub eid: u64,
    /// Seconds since 1970, nanoseconds.
    pub time: (i64, i64),
    /// Its class.
    pub class: String,
    /// All its fields.
    pub payload: NvList,
}

impl Event {
    fn of(payload: NvList) -> Option<Self> {
        let class = payload.str("class")?.to_owned();
        let time = match payload.get("time")? {
            nvpair::NvValue::Int64Array(time) => match time.as_slice() {
                [seconds, nanos] => (*seconds, *nanos),
                _ => return None,
            },
            _ => return None,
        };
        Some(Self { eid: payload.u64("eid")?, time, class, payload })
    }
}

/// The last event that was processed: the daemon's epoch and the event's number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// The epoch of the daemon.
    pub epoch: u64,
    /// The number of the event.
    pub eid: u64,
}

/// A message of the follower.
#[derive(Debug)]
pub enum News {
    /// A daemon was found; events after this number follow.
    Found(Position),
    /// The daemon has ended, or the connection broke.
    Lost,
    /// An event, and the position after it.
    Event(Box<Event>, Position),
    /// Events that were dropped before they were read.
    Missed(u64),
    /// The daemon refuses, or the connection is not trusted.
    Refused(String),
}

/// Whether a command line in the daemon is the request for events.
pub fn is_request(argv: &[OsString]) -> bool {
    argv.first().is_some_and(|word| word == FOLLOW)
}

/// Answers the request in the daemon, until the client disconnects; returns the exit code.
pub fn serve(mut call: Call) -> u8 {
    let number = |at: usize| call.argv.get(at).and_then(|word| word.to_str()?.parse().ok()).unwrap_or(0);
    let asked = Position { epoch: number(1), eid: number(2) };
    if call.delegated.is_some() {
        return 1;
    }
    // The client has disconnected, which is the regular end.
    let _ = send_all(&mut call, asked);
    0
}

fn send_all(call: &mut Call, asked: Position) -> io::Result<()> {
    let epoch = call.registry.epoch;
    let mut after = if asked.epoch == epoch { asked.eid } else { 0 };
    send(&mut call.stdout, NvList::new().add("epoch", epoch))?;
    let (mut reader, mut is_first) = (Reader::default(), true);
    while !call.interrupt.load(std::sync::atomic::Ordering::Relaxed) {
        let mut news = reader.news(&call.registry);
        for event in news.events.into_iter().filter(|event| event.eid > after) {
            if !send(&mut call.stdout, NvList::new().add("event", event.payload))? {
                news.missed += 1;
            }
        }
        // Events that were dropped before the client came may have been processed earlier.
        if news.missed > 0 && !is_first {
            send(&mut call.stdout, NvList::new().add("missed", news.missed))?;
        }
        // Pools that appear later may have events with smaller numbers.
        (after, is_first) = (0, false);
        thread::sleep(POLL);
    }
    Ok(())
}

/// Writes a record; `false` if it is too large.
fn send(out: &mut dyn Write, list: &NvList) -> io::Result<bool> {
    let Ok(bytes) = list.encode_xdr() else { return Ok(false) };
    let Some(length) = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= MAX) else {
        return Ok(false);
    };
    out.write_all(&[&length.to_le_bytes()[..], &bytes].concat())?;
    Ok(true)
}

fn receive(from: &mut dyn Read) -> io::Result<NvList> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    if length > MAX {
        return Err(invalid("the daemon sends a record that is too long"));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    NvList::decode(&bytes).map_err(|e| invalid(&format!("the daemon sends an invalid record: {e}")))
}

/// Follows the events of the daemon at `place` from a thread of its own, also those of later daemons, and starts none. The
/// thread ends when the receiver is dropped.
///
/// # Errors
/// If there is no thread.
pub fn follow(place: RunPaths, from: Position) -> io::Result<Receiver<News>> {
    let (to, news) = sync_channel(WAITING);
    let mut follower = Follower { place, position: from, to };
    thread::Builder::new().name("events".into()).spawn(move || while follower.connect().is_some() {})?;
    Ok(news)
}

struct Follower {
    place: RunPaths,
    position: Position,
    to: SyncSender<News>,
}

impl Follower {
    /// Reads from one daemon, if there is one, until it ends; `None` when the receiver is gone.
    fn connect(&mut self) -> Option<()> {
        match self.open() {
            Ok((mut pipe, _stream)) => {
                if let Err(e) = self.read(&mut pipe)?
                    && e.kind() == io::ErrorKind::InvalidData
                {
                    self.tell(News::Refused(e.to_string()))?;
                }
                self.tell(News::Lost)?;
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.tell(News::Refused(e.to_string()))?;
            }
            Err(_) => {}
        }
        thread::sleep(AGAIN);
        Some(())
    }

    fn open(&self) -> io::Result<(io::PipeReader, impl Sized + use<>)> {
        let (pipe, end) = io::pipe()?;
        let numbers = [self.position.epoch, self.position.eid].map(|number| number.to_string().into());
        let argv = std::iter::once(FOLLOW.into()).chain(numbers).collect();
        let stream = client::follow(&self.place, argv, end.as_fd())?;
        Ok((pipe, stream))
    }

    /// Passes on the records until the first error.
    fn read(&mut self, pipe: &mut io::PipeReader) -> Option<io::Result<()>> {
        loop {
            let record = match receive(pipe) {
                Ok(record) => record,
                Err(e) => return Some(Err(e)),
            };
            if let Some(epoch) = record.u64("epoch") {
                if self.position.epoch != epoch {
                    self.position = Position { epoch, eid: 0 };
                }
                self.tell(News::Found(self.position))?;
            } else if let Some(missed) = record.u64("missed") {
                self.tell(News::Missed(missed))?;
            } else if let Some(event) = record.nvlist("event").cloned().and_then(Event::of) {
                self.position.eid = self.position.eid.max(event.eid);
                self.tell(News::Event(Box::new(event), self.position))?;
            }
        }
    }

    fn tell(&self, news: News) -> Option<()> {
        self.to.send(news).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_arrive_as_they_were_sent_and_bad_ones_are_refused() {
        let mut payload = NvList::new();
        payload.add("class", "a.b.c.d").add("eid", 3u64);
        payload.add("time", nvpair::NvValue::Int64Array(vec![5, 6]));
        let mut bytes = Vec::new();
        assert!(send(&mut bytes, NvList::new().add("event", payload.clone())).unwrap());
        let record = receive(&mut bytes.as_slice()).unwrap();
        let event = Event::of(record.nvlist("event").unwrap().clone()).unwrap();
        assert_eq!((event.eid, event.time, event.class.as_str()), (3, (5, 6), "a.b.c.d"));
        for end in 0..bytes.len() {
            assert!(receive(&mut &bytes[..end]).is_err());
        }
        assert!(receive(&mut &[0xff; 8][..]).is_err());
        assert!(!send(&mut Vec::new(), NvList::new().add("event", "x".repeat(MAX).as_str())).unwrap());
        payload.add("time", nvpair::NvValue::Int64Array(vec![5]));
        assert_eq!(Event::of(payload), None);
    }

    #[test]
    fn only_the_request_is_one() {
        assert!(is_request(&[FOLLOW.into(), "1".into(), "2".into()]));
        assert!(!is_request(&["zpool".into(), FOLLOW.into()]) && !is_request(&[]));
    }
}
