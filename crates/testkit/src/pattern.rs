//! Objects of numbered blocks whose content follows from their numbers, so that a test can tell later whether a pool still has
//! it.

#![expect(clippy::expect_used, reason = "a test without its object cannot continue")]

use std::sync::Arc;

use engine::dmu::NewObject;
use engine::spa::Spa;
use ondisk::{ObjectType, ObjsetType};
use stdx::rng::Rng;

/// The numbers of an object's dataset and of the object.
pub type File = (u64, u64);

/// The size of such an object.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// The number of blocks.
    pub blocks: usize,
    /// Bytes of a block.
    pub block: usize,
}

impl Pattern {
    /// The content of block `number`.
    pub fn bytes(self, number: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.block];
        Rng::new(number as u64).fill(&mut bytes);
        bytes
    }

    /// Creates the dataset `name` with an object of this pattern, and syncs.
    ///
    /// # Panics
    /// If that fails.
    pub fn create(self, spa: &Arc<Spa>, name: &str) -> File {
        let name = name.to_owned();
        let created = spa.dsl_task(move |t| t.create(&name, ObjsetType::Other, 0, &mut |_, _| Ok(())));
        let dataset = created.expect("a dataset");
        (dataset, self.add(spa, dataset))
    }

    /// Creates an object of this pattern in a dataset, and syncs. Returns its number.
    ///
    /// # Panics
    /// If that fails.
    pub fn add(self, spa: &Spa, dataset: u64) -> u64 {
        let data = spa.datasets.open(spa, dataset).expect("the dataset");
        let tx = spa.begin().expect("a transaction");
        let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, self.block as u64);
        let object = data.objset.create_object(&tx, new).expect("an object").number;
        drop((tx, data));
        self.write(spa, (dataset, object), |_| true);
        object
    }

    /// Writes the `chosen` blocks of an object again, and syncs.
    ///
    /// # Panics
    /// If that fails.
    pub fn write(self, spa: &Spa, (dataset, object): File, chosen: impl Fn(usize) -> bool) {
        let data = spa.datasets.open(spa, dataset).expect("the dataset");
        let handle = data.objset.handle(object).expect("the object");
        let tx = spa.begin().expect("a transaction");
        for number in (0..self.blocks).filter(|number| chosen(*number)) {
            handle.write(&tx, (number * self.block) as u64, &self.bytes(number)).expect("a write");
        }
        drop(tx);
        spa.sync().expect("a sync");
    }

    /// Tests whether each block of an object can be read and has its content.
    ///
    /// # Panics
    /// If the object does not exist.
    pub fn is_in(self, spa: &Spa, (dataset, object): File) -> bool {
        let data = spa.datasets.open(spa, dataset).expect("the dataset");
        let stored = data.objset.view().object(object).expect("the object");
        (0..self.blocks).all(|number| {
            let at = (number * self.block) as u64;
            stored.read_vec(at, self.block).is_ok_and(|bytes| bytes == self.bytes(number))
        })
    }
}
