//! The bytes of a file's attributes.

use std::ops::{Deref, DerefMut, Range};

/// Bytes of an ordinary file's values, with room for the number of its directory of extended attributes.
const ROOM: usize = 192;

/// Bytes of values. Those of ordinary files stand in the structure itself, so that a copy allocates nothing: each change of a
/// file makes copies.
#[derive(Clone)]
pub(super) enum Values {
    /// The first `len` bytes.
    Here { len: u8, bytes: [u8; ROOM] },
    /// More bytes than there is room for.
    Far(Vec<u8>),
}

impl Default for Values {
    fn default() -> Self {
        Self::Here { len: 0, bytes: [0; ROOM] }
    }
}

impl Deref for Values {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Here { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Self::Far(bytes) => bytes,
        }
    }
}

impl DerefMut for Values {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Here { len, bytes } => bytes.get_mut(..usize::from(*len)).unwrap_or_default(),
            Self::Far(bytes) => bytes,
        }
    }
}

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Values {}

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl Values {
    /// Adds bytes at the end.
    pub(super) fn extend(&mut self, more: &[u8]) {
        let end = self.len();
        self.replace(end..end, more);
    }

    /// Replaces the bytes of `range`, which is within the present ones, by others of any number.
    pub(super) fn replace(&mut self, range: Range<usize>, by: &[u8]) {
        if let Self::Here { len, bytes } = self {
            let before = usize::from(*len);
            let after = before.saturating_sub(range.len()).saturating_add(by.len());
            let behind = range.start.saturating_add(by.len());
            if let Ok(after) = u8::try_from(after)
                && usize::from(after) <= ROOM
                && range.end <= before
            {
                bytes.copy_within(range.end..before, behind);
                if let Some(place) = bytes.get_mut(range.start..behind) {
                    place.copy_from_slice(by);
                }
                *len = after;
                return;
            }
        }
        let mut all = match std::mem::take(self) {
            Self::Far(all) => all,
            here @ Self::Here { .. } => here.to_vec(),
        };
        all.splice(range, by.iter().copied());
        *self = Self::Far(all);
    }
}

#[cfg(test)]
mod tests {
    use stdx::rng::Rng;

    use super::Values;

    #[test]
    fn bytes_here_and_far_behave_as_a_vector() {
        let (mut rng, mut values, mut model) = (Rng::new(7), Values::default(), Vec::new());
        let mut far = 0;
        for round in 0..4000_u32 {
            let room = u64::try_from(model.len()).unwrap() + 1;
            let (a, b) = (rng.below(room) as usize, rng.below(room) as usize);
            let range = a.min(b)..a.max(b);
            let by = vec![round as u8; rng.below(120) as usize];
            model.splice(range.clone(), by.iter().copied());
            values.replace(range, &by);
            values.extend(&[round as u8; 3]);
            model.extend([round as u8; 3]);
            assert_eq!(*values, *model);
            assert_eq!(values.clone(), values);
            far += u32::from(matches!(values, Values::Far(_)));
            if rng.below(25) == 0 {
                (values, model) = (Values::default(), Vec::new());
            }
        }
        assert!(far > 100 && far < 3900, "both forms were used: {far}");
    }
}
