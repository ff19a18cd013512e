//! Numbered slots with generations: a key of something that is gone finds nothing, never its successor.
//! Owns: that rule. Never: unbounded growth; the capacity is given once and its memory taken up front.

/// A slot and the generation of what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    slot: u32,
    generation: u32,
}

impl Key {
    /// The key as one number, for drivers that carry it through a protocol field.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The inverse of [`Key::to_u64`]. A number that never was a key finds nothing.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the number")]
    pub fn from_u64(number: u64) -> Self {
        Key { slot: number as u32, generation: (number >> 32) as u32 }
    }
}

#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    /// Slots from here on were never taken: nobody has to look at them.
    unused: usize,
}

impl<T> Slab<T> {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Slab {
            slots: (0..capacity).map(|_| (0, None)).collect(),
            free: (0..u32::try_from(capacity).expect("a capacity of slots")).rev().collect(),
            unused: 0,
        }
    }

    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The caller has checked `room`.
    pub(super) fn insert(&mut self, value: T) -> Key {
        let slot = self.free.pop().expect("room was checked before");
        let entry = &mut self.slots[slot as usize];
        entry.1 = Some(value);
        self.unused = self.unused.max(slot as usize + 1);
        Key { slot, generation: entry.0 }
    }

    pub(super) fn get(&self, key: Key) -> Option<&T> {
        self.slots.get(key.slot as usize).filter(|s| s.0 == key.generation).and_then(|s| s.1.as_ref())
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slots.get_mut(key.slot as usize).filter(|s| s.0 == key.generation).and_then(|s| s.1.as_mut())
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.slots.get_mut(key.slot as usize).filter(|s| s.0 == key.generation)?;
        let value = entry.1.take()?;
        entry.0 = entry.0.wrapping_add(1);
        self.free.push(key.slot);
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots[..self.unused].iter().enumerate().filter_map(|(slot, (generation, value))| {
            let slot = u32::try_from(slot).expect("made from a u32");
            value.as_ref().map(|value| (Key { slot, generation: *generation }, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_never_finds_a_successor() {
        let mut slab = Slab::with_capacity(1);
        let first = slab.insert('a');
        assert_eq!(slab.room(), 0);
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b');
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.get_mut(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&'b'));
        assert_eq!(Key::from_u64(second.to_u64()), second);
    }
}
