//! Read-ahead for the readers of one file.
//!
//! Each read is compared with the streams that are known: one that continues a stream forward or backward lets the following
//! bytes be read, and so does the third of reads at equal distances. The distance doubles with each read of the stream. When
//! three quarters of it are there already nothing is started, so that devices get long requests. Blocks that are read ahead
//! take part of the cache that all files share ([`crate::memory::on_its_way`]); beyond that nothing is started.
//!
//! Requests of one reader may arrive in another order than that in which it made them (several threads answer the kernel's own
//! read-ahead), so an established stream also accepts reads that are a few of them off.
//!
//! Differs from OpenZFS (`dmu_zfetch.c`, 2.4): streams are also followed backward and at equal distances.

use parking_lot::Mutex;

use super::Object;

/// Maximum bytes of read-ahead.
const WINDOW: u64 = 16 << 20;
/// First window after a stream was detected.
const FIRST: u64 = 1 << 20;
/// The smallest part of the cache that a window may be is one in so many.
const PART: u64 = 16;
/// Streams that are followed at once.
const STREAMS: usize = 8;
/// Reads after which a stream is established.
const ESTABLISHED: u32 = 2;
/// Distance at which an established stream accepts a read, in reads.
const NEAR: u64 = 4;
/// Maximum distance between two reads of a stream with gaps.
const MAX_STEP: u64 = 64 << 20;

/// The direction of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// Towards higher offsets, without gaps; also a single read.
    Forward,
    /// Towards lower offsets, without gaps.
    Backward,
    /// At this distance, which is longer than a read.
    Steps(i64),
}

#[derive(Debug, Clone)]
struct Stream {
    course: Course,
    /// The last read.
    offset: u64,
    len: u64,
    /// Reads that continued it.
    hits: u32,
    /// Bytes to be read ahead.
    window: u64,
    /// The end of what was read ahead: an offset; for [`Course::Backward`] its start.
    ahead: u64,
}

impl Stream {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// The course in which a read continues this stream.
    fn continued(&self, offset: u64, len: u64) -> Option<Course> {
        let end = offset.saturating_add(len);
        let forward = self.course == Course::Forward;
        let is_near =
            forward && self.hits >= ESTABLISHED && offset.abs_diff(self.end()) <= len.saturating_mul(NEAR);
        match self.course {
            Course::Steps(step) => {
                (self.offset.checked_add_signed(step) == Some(offset)).then_some(self.course)
            }
            Course::Forward if offset == self.end() || is_near => Some(Course::Forward),
            Course::Forward | Course::Backward if end == self.offset && (self.hits == 0 || !forward) => {
                Some(Course::Backward)
            }
            Course::Forward | Course::Backward => None,
        }
    }
}

/// A range of a file: offset and end.
type Range = (u64, u64);

/// The streams of one file.
#[derive(Debug, Default, Clone)]
pub struct Prefetch {
    /// Most recently used last.
    streams: Vec<Stream>,
    /// The last read that continued no stream, and its distance from the one before.
    stray: Option<(u64, i64)>,
}

impl Prefetch {
    /// Called before `[offset, offset + len)` is read: starts reading what a stream is expected to need next.
    pub fn observe(&mut self, object: &Object, offset: u64, len: u64) {
        let ranges = self.expected(offset, len, windows(object)).unwrap_or_default();
        for (blkid, count) in blocks(object, ranges) {
            object.read_ahead(blkid, count, false);
        }
    }

    /// The ranges to be read ahead, now that a range is read; `windows`: the smallest and the largest. `None`: it continues no
    /// stream.
    fn expected(&mut self, offset: u64, len: u64, windows: (u64, u64)) -> Option<Vec<Range>> {
        if len == 0 {
            return None;
        }
        let found = self.streams.iter().enumerate().rev();
        let found = found.filter_map(|(at, stream)| Some((at, stream.continued(offset, len)?))).next();
        let Some((at, course)) = found else {
            self.stray(offset, len);
            return None;
        };
        let mut stream = self.streams.remove(at);
        stream.hits = stream.hits.saturating_add(1);
        stream.window = stream.window.saturating_mul(2).clamp(windows.0, windows.1);
        if course != stream.course {
            (stream.course, stream.ahead) = (course, offset);
        }
        // A read that comes late does not turn the stream back.
        if course != Course::Forward || offset >= stream.offset {
            (stream.offset, stream.len) = (offset, len);
        }
        let ranges = next_ranges(&mut stream);
        self.streams.push(stream);
        Some(ranges)
    }

    /// A read that continues nothing begins a stream; at the same distance as the one before it continues one with gaps.
    fn stray(&mut self, offset: u64, len: u64) {
        let step = self.stray.map_or(0, |(before, _)| {
            let (offset, before) = (i64::try_from(offset), i64::try_from(before));
            offset.ok().zip(before.ok()).map_or(0, |(offset, before)| offset.saturating_sub(before))
        });
        let is_regular = self.stray.is_some_and(|(_, last)| last == step)
            && (len..=MAX_STEP).contains(&step.unsigned_abs());
        self.stray = Some((offset, step));
        if self.streams.len() >= STREAMS {
            self.streams.remove(0);
        }
        let course = if is_regular { Course::Steps(step) } else { Course::Forward };
        let ahead = if is_regular { offset } else { offset.saturating_add(len) };
        self.streams.push(Stream { course, offset, len, hits: 0, window: 0, ahead });
    }
}

/// The smallest and the largest window of an object's streams.
fn windows(object: &Object) -> (u64, u64) {
    let size = object.dnode.datablksz().max(1);
    let most = (object.cache_target() / PART).clamp(FIRST, WINDOW);
    (FIRST.max(size), most.max(size))
}

/// The blocks of the ranges: first and number.
fn blocks(object: &Object, ranges: Vec<Range>) -> Vec<(u64, u64)> {
    let size = object.dnode.datablksz().max(1);
    let of_range = |(start, end): Range| (start / size, end.div_ceil(size).saturating_sub(start / size));
    ranges.into_iter().map(of_range).collect()
}

/// The streams of all readers of a file: takes memory from the first read on that does not read all of it.
#[derive(Debug, Default)]
pub struct SharedPrefetch(Mutex<Option<Box<Prefetch>>>);

impl SharedPrefetch {
    /// As [`Prefetch::observe`], by another thread, for a read of `(offset, length)`; `size`: bytes of the file; `paged`: the
    /// readers pass the bytes on to the system's page cache. Returns true if the read continues a stream.
    pub fn observe(&self, object: &Object, size: u64, (offset, len): (u64, u64), paged: bool) -> bool {
        let len = len.min(size.saturating_sub(offset));
        if len == size {
            return false;
        }
        let expected = self.0.lock().get_or_insert_default().expected(offset, len, windows(object));
        let Some(ranges) = expected else { return false };
        if !ranges.is_empty() {
            object.read_ahead_elsewhere(blocks(object, ranges), paged);
        }
        true
    }
}

/// The ranges that are to be read now; the stream counts them as read ahead.
fn next_ranges(stream: &mut Stream) -> Vec<Range> {
    let (window, end) = (stream.window, stream.end());
    match stream.course {
        Course::Forward => {
            let (from, to) = (stream.ahead.max(end), end.saturating_add(window));
            if to.saturating_sub(from) < window / 4 {
                return Vec::new();
            }
            stream.ahead = to;
            vec![(from, to)]
        }
        Course::Backward => {
            let (from, to) = (stream.offset.saturating_sub(window), stream.ahead.min(stream.offset));
            if to.saturating_sub(from) < (window / 4).min(stream.offset) || to <= from {
                return Vec::new();
            }
            stream.ahead = from;
            vec![(from, to)]
        }
        Course::Steps(step) => {
            let count = (window / stream.len.max(1)).clamp(1, 32);
            let last = i64::try_from(count).ok().and_then(|count| step.checked_mul(count));
            let last = last.and_then(|far| stream.offset.checked_add_signed(far));
            let is_new = |at: u64| if step > 0 { at > stream.ahead } else { at < stream.ahead };
            let next = |at: &u64| at.checked_add_signed(step);
            let ranges: Vec<Range> = std::iter::successors(next(&stream.offset), next)
                .take(usize::try_from(count).unwrap_or(1))
                .filter(|at| is_new(*at))
                .map(|at| (at, at.saturating_add(stream.len)))
                .collect();
            stream.ahead = last.unwrap_or(stream.ahead);
            ranges
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;

    fn read(prefetch: &mut Prefetch, offset: u64, len: u64) -> Vec<Range> {
        prefetch.expected(offset, len, (M, 16 * M)).unwrap_or_default()
    }

    #[test]
    fn a_stream_is_read_ahead_in_growing_pieces_and_nothing_twice() {
        let mut prefetch = Prefetch::default();
        assert!(read(&mut prefetch, 0, 128 * K).is_empty());
        let (mut ahead, mut pieces) = (0, 0);
        for number in 1..1000 {
            for (start, end) in read(&mut prefetch, number * 128 * K, 128 * K) {
                assert!(start == ahead || ahead == 0, "a gap or an overlap at {start}");
                assert!(end - start >= 128 * K && end - (number + 1) * 128 * K <= 16 * M);
                (ahead, pieces) = (end, pieces + 1);
            }
            assert!(ahead >= (number + 1) * 128 * K, "read {number} is not ahead");
        }
        assert!(ahead >= 1000 * 128 * K + 11 * M && pieces < 60, "{pieces}");
    }

    #[test]
    fn several_streams_do_not_disturb_each_other_nor_do_stray_reads() {
        let mut prefetch = Prefetch::default();
        let mut ahead = [0; 4];
        for number in 0..200u64 {
            for (stream, ahead) in ahead.iter_mut().enumerate() {
                let base = stream as u64 * 1000 * M;
                for (_, end) in read(&mut prefetch, base + number * 64 * K, 64 * K) {
                    *ahead = end - base;
                }
            }
            assert!(read(&mut prefetch, 9000 * M + number * number * 7919 * K, 8 * K).is_empty());
        }
        assert!(ahead.iter().all(|ahead| *ahead > 20 * M), "{ahead:?}");
    }

    #[test]
    fn exchanged_reads_of_a_stream_do_not_end_it() {
        let mut prefetch = Prefetch::default();
        let mut ahead = 0;
        for pair in 0..200u64 {
            for number in [pair * 2 + 1, pair * 2] {
                let number = if pair < 2 { pair * 2 + u64::from(number == pair * 2) } else { number };
                if let Some((_, end)) = read(&mut prefetch, number * 128 * K, 128 * K).last() {
                    ahead = *end;
                }
            }
        }
        assert!(ahead > 400 * 128 * K, "{ahead}");
        assert_eq!(prefetch.streams.len(), 1);
    }

    #[test]
    fn backward_and_regular_reads_are_followed() {
        let mut prefetch = Prefetch::default();
        let mut least = u64::MAX;
        for number in (100..1000).rev() {
            for (start, end) in read(&mut prefetch, number * 128 * K, 128 * K) {
                assert!(end <= number * 128 * K && (least == u64::MAX || end == least));
                least = start;
            }
        }
        assert!(least < 100 * 128 * K);
        while let Some((start, _)) = read(&mut prefetch, least, 4 * K).first() {
            least = *start;
        }
        let mut prefetch = Prefetch::default();
        let mut wanted = std::collections::HashSet::new();
        for number in 0..100u64 {
            let offset = 5 * M + number * 3 * M;
            assert!(number < 4 || wanted.contains(&offset), "read {number}");
            wanted.extend(read(&mut prefetch, offset, 16 * K).into_iter().map(|(start, _)| start));
        }
        assert!(wanted.len() < 140);
    }

    #[test]
    fn reads_at_random_places_are_not_followed() {
        let mut prefetch = Prefetch::default();
        let mut place = 1u64;
        for _ in 0..1000 {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            assert!(read(&mut prefetch, (place >> 40) * 8 * K, 8 * K).is_empty());
        }
        assert!(prefetch.streams.len() <= STREAMS);
    }
}
