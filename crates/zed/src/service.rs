//! The work of the event daemon: for each event its zedlets, in order, until it is asked to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::files::StateFile;
use crate::jobs::Jobs;
use crate::log::Log;
use crate::options::Options;
use crate::source::{Event, News, Position};
use crate::variables::{Surroundings, subclass};
use crate::zedlets::{Zedlets, is_still_fit};

/// Interval of checks for signals while zedlets are running, and while none is.
const BUSY: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_millis(200);

/// The flags that signals set.
#[derive(Debug, Clone)]
pub struct Requests {
    /// End.
    pub stop: Arc<AtomicBool>,
    /// Read the directory anew.
    pub reread: Arc<AtomicBool>,
}

/// The event daemon at work.
pub struct Service<'a> {
    options: &'a Options,
    log: &'a Log,
    requests: Requests,
    zedlets: Zedlets,
    jobs: Jobs,
    surroundings: Surroundings,
    state: StateFile,
    /// The last complaint about the connection, which is not repeated.
    refused: String,
}

impl<'a> Service<'a> {
    /// A service that runs these zedlets.
    pub fn new(
        options: &'a Options,
        log: &'a Log,
        requests: Requests,
        zedlets: Zedlets,
        state: StateFile,
    ) -> Self {
        Self {
            options,
            log,
            zedlets,
            jobs: Jobs::new(options.jobs, options.time_limit, Arc::clone(&requests.stop)),
            surroundings: Surroundings::new(&options.zedlet_dir, options.path.as_ref()),
            state,
            requests,
            refused: String::new(),
        }
    }

    /// Processes news until a signal asks for the end. Zedlets that are running then go on by themselves.
    pub fn run(mut self, news: &Receiver<News>) {
        while !self.is_over() {
            self.jobs.tend(self.log);
            if self.requests.reread.swap(false, Ordering::Relaxed) {
                self.reread();
            }
            let patience = if self.jobs.is_idle() { IDLE } else { BUSY };
            match news.recv_timeout(patience) {
                Ok(news) => self.take(news),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.log.error("the thread that reads events has ended");
                    return;
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.requests.stop.load(Ordering::Relaxed)
    }

    /// A directory that is no longer safe, or gone, has no zedlets.
    fn reread(&mut self) {
        let Options { zedlet_dir, force, .. } = self.options;
        match Zedlets::of_dir(zedlet_dir, *force, self.log) {
            Ok(zedlets) => {
                self.log.notice(&format!("{} zedlets in '{}'", zedlets.len(), zedlet_dir.display()));
                self.zedlets = zedlets;
            }
            Err(why) => {
                self.log.error(&why);
                self.zedlets = Zedlets::default();
            }
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Found(Position { eid, .. }) => {
                self.refused.clear();
                self.log.notice(&format!("Processing events since eid={eid}"));
            }
            News::Lost => self.log.notice("the daemon has ended: waiting for the next one"),
            News::Missed(count) => self.log.warn(&format!("Missed {count} events")),
            News::Refused(why) if self.refused == why => {}
            News::Refused(why) => {
                self.log.error(&why);
                self.refused = why;
            }
            News::Event(event, position) => self.process(&event, position),
        }
    }

    /// Starts the zedlets of an event. The event is stored as the last one when all of them were started: one that the end of
    /// this process interrupts is processed again.
    fn process(&mut self, event: &Event, position: Position) {
        let subclass = subclass(&event.class);
        let (variables, left_out) = self.surroundings.of_event(event);
        for name in left_out {
            self.log.warn(&format!("Failed to add variable for eid={}: field '{name}'", event.eid));
        }
        for zedlet in self.zedlets.for_event(&event.class, subclass) {
            let path = self.options.zedlet_dir.join(zedlet.name);
            if let Err(why) = is_still_fit(&path, self.options.force) {
                self.log.notice(&format!("ignoring '{}': {why}", zedlet.name));
                continue;
            }
            if zedlet.alone {
                self.jobs.finish(self.log);
            }
            if !self.jobs.start(&path, zedlet.name, event.eid, &variables, self.log) {
                return;
            }
            if zedlet.alone {
                self.jobs.finish(self.log);
            }
        }
        if let Err(why) = self.state.write(position, event) {
            self.log.warn(&why);
        }
    }
}
