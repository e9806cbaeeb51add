//! Registry and layouts of a file system.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ondisk::ObjectType;
use ondisk::sa::{SA_LAYOUTS, SA_REGISTRY, SaAttr, ZPL_ATTRS};
use stdx::rng::Rng;

use super::corrupt;
#[cfg(test)]
use crate::dmu::edit::Edit;
use crate::dmu::edit::Objects;
use crate::dmu::{NewObject, Objset};
use crate::error::{Error, Kind, Result};
use crate::zap::{NewZap, Value, Zap, ZapEdit, ZapEntry};

/// Maximum number of attributes in a registry, and of layouts; numbers are 16 and 10 bits wide.
const MAX_ATTRS: usize = 1 << 12;
const MAX_LAYOUTS: usize = 1 << 10;
/// Maximum attributes of a layout; all of them must fit a dnode and its spill block.
const MAX_LAYOUT_LEN: usize = 512;
/// The indexes of the first attributes of [`ZPL_ATTRS`] are their numbers: they are those of old file systems.
const LEGACY_ATTRS: u16 = 16;
/// Layouts 0 (old znodes) and 1 (a buffer without attributes) are never stored.
const FIRST_LAYOUT: u16 = 2;

#[derive(Debug, Clone)]
struct Registered {
    name: String,
    attr: SaAttr,
    stored: bool,
}

#[derive(Debug, Clone)]
struct Layout {
    attrs: Arc<[SaAttr]>,
    stored: bool,
}

/// Registry and layouts, and their unstored parts.
///
/// All attributes of the ZPL have a number from the start; as in OpenZFS, they are stored with the first change of
/// any file. A new layout gets the next number and is stored with the file that needed it.
#[derive(Debug, Clone)]
pub struct SaTables {
    master: u64,
    registry: Option<u64>,
    layouts_object: Option<u64>,
    attrs: BTreeMap<u16, Registered>,
    names: HashMap<String, u16>,
    layouts: BTreeMap<u16, Layout>,
    numbers: HashMap<Vec<u16>, u16>,
    /// Some part is not stored yet.
    pending: bool,
}

impl SaTables {
    /// The tables of a new file system, whose master node is an empty ZAP.
    pub fn new(master: u64) -> Self {
        let mut tables = Self {
            master,
            registry: None,
            layouts_object: None,
            attrs: BTreeMap::new(),
            names: HashMap::new(),
            layouts: BTreeMap::new(),
            numbers: HashMap::new(),
            pending: false,
        };
        tables.add_zpl();
        tables
    }

    /// Reads the tables below the SA master node `master`.
    pub fn load(objset: &Arc<Objset>, master: u64) -> Result<Self> {
        Self::read(master, |number| Zap::open(&objset.object(number)?)?.entries().take(MAX_ATTRS).collect())
    }

    /// [`Self::load`] from objects under change.
    #[cfg(test)]
    pub(crate) fn load_edited(objects: &dyn Objects, master: u64) -> Result<Self> {
        Self::read(master, |number| {
            let object = objects.edit(number)?;
            let object: &dyn Edit = &*object;
            Zap::open(&object)?.entries().take(MAX_ATTRS).collect()
        })
    }

    fn read(master: u64, zap: impl Fn(u64) -> Result<Vec<ZapEntry>>) -> Result<Self> {
        let mut tables = Self::new(master);
        let heads = zap(master)?;
        let head = |name: &str| {
            let entry = heads.iter().find(|e| e.name() == name.as_bytes());
            entry.and_then(|e| e.value.first()).filter(|n| *n != 0)
        };
        tables.registry = head(SA_REGISTRY);
        tables.layouts_object = head(SA_LAYOUTS);
        if let Some(registry) = tables.registry {
            tables.attrs.clear();
            tables.names.clear();
            tables.pending = false;
            for entry in zap(registry)? {
                let attr = SaAttr::from_registry(entry.value.first().unwrap_or_default()).map_err(corrupt)?;
                tables.add(entry.name_lossy(), attr, true);
            }
            tables.add_zpl();
        }
        if let Some(layouts) = tables.layouts_object {
            for entry in zap(layouts)?.iter().take(MAX_LAYOUTS) {
                tables.add_stored_layout(entry)?;
            }
        }
        Ok(tables)
    }

    fn add_stored_layout(&mut self, entry: &ZapEntry) -> Result<()> {
        let Ok(number) = entry.name_lossy().parse::<u16>() else { return Ok(()) };
        let numbers = entry.value.ints.iter().take(MAX_LAYOUT_LEN);
        let list: Option<Vec<SaAttr>> =
            numbers.map(|n| Some(self.attrs.get(&u16::try_from(*n).ok()?)?.attr)).collect();
        let list = list.ok_or_else(|| {
            Error::corrupt(format!("attribute layout {number} names an unregistered attribute"))
        })?;
        self.add_layout(number, list, true);
        Ok(())
    }

    fn add_layout(&mut self, number: u16, attrs: Vec<SaAttr>, stored: bool) {
        let key = attrs.iter().map(|a| a.num).collect();
        self.numbers.entry(key).or_insert(number);
        self.pending |= !stored;
        self.layouts.insert(number, Layout { attrs: attrs.into(), stored });
    }

    fn add(&mut self, name: String, attr: SaAttr, stored: bool) {
        self.names.insert(name.clone(), attr.num);
        self.pending |= !stored;
        self.attrs.insert(attr.num, Registered { name, attr, stored });
    }

    /// Numbers each attribute of the ZPL that has no number.
    #[doc(alias = "sa_attr_table_setup")]
    fn add_zpl(&mut self) {
        for (place, known) in (0u16..).zip(ZPL_ATTRS) {
            if self.names.contains_key(known.name) {
                continue;
            }
            let next = self.attrs.keys().next_back().map_or(0, |last| last.saturating_add(1));
            let num = if place < LEGACY_ATTRS { place } else { next.max(LEGACY_ATTRS) };
            let attr = SaAttr { num, len: known.len, byteswap: known.byteswap };
            if !self.attrs.contains_key(&num) {
                self.add(known.name.to_owned(), attr, false);
            }
        }
    }

    /// The attribute with this name (`ZPL_MODE`).
    pub fn attr(&self, name: &str) -> Option<SaAttr> {
        Some(self.attrs.get(self.names.get(name)?)?.attr)
    }

    /// The name of an attribute.
    pub fn name(&self, num: u16) -> Option<&str> {
        self.attrs.get(&num).map(|a| a.name.as_str())
    }

    /// The attributes of a layout, in its order.
    pub fn layout(&self, number: u16) -> Option<Arc<[SaAttr]>> {
        self.layouts.get(&number).map(|l| Arc::clone(&l.attrs))
    }

    /// The number of the layout of these attributes, which is added if necessary.
    #[doc(alias = "sa_find_layout")]
    pub fn number_of(&mut self, attrs: &[SaAttr]) -> Result<u16> {
        let key: Vec<u16> = attrs.iter().map(|a| a.num).collect();
        if let Some(number) = self.numbers.get(&key).filter(|n| **n >= FIRST_LAYOUT) {
            return Ok(*number);
        }
        let last = self.layouts.keys().next_back().copied().unwrap_or(0);
        let number = last.saturating_add(1).max(FIRST_LAYOUT);
        if usize::from(number) >= MAX_LAYOUTS {
            return Err(Error::new(Kind::Limit, "the file system has too many layouts of attributes"));
        }
        self.add_layout(number, attrs.to_vec(), false);
        Ok(number)
    }

    /// Whether everything is stored.
    pub fn is_stored(&self) -> bool {
        !self.pending
    }

    /// Stores the new parts; to be called in the transaction that stores the first file that needs them.
    #[doc(alias("sa_attr_register_sync", "sa_add_layout_entry"))]
    pub fn store(&mut self, objects: &dyn Objects, rng: &mut Rng) -> Result<()> {
        let attrs: Vec<Registered> = self.attrs.values().filter(|a| !a.stored).cloned().collect();
        if !attrs.is_empty() {
            let link = (SA_REGISTRY, ObjectType::SA_ATTR_REGISTRATION);
            let number = linked(objects, self.master, self.registry, link, rng)?;
            self.registry = Some(number);
            let mut object = objects.edit(number)?;
            let mut zap = ZapEdit::open(&mut *object)?;
            for Registered { name, attr, .. } in &attrs {
                zap.update(name, attr.to_registry())?;
            }
            self.attrs.values_mut().for_each(|a| a.stored = true);
        }
        let layouts: Vec<(u16, Layout)> =
            self.layouts.iter().filter(|(_, l)| !l.stored).map(|(n, l)| (*n, l.clone())).collect();
        if !layouts.is_empty() {
            let link = (SA_LAYOUTS, ObjectType::SA_ATTR_LAYOUTS);
            let number = linked(objects, self.master, self.layouts_object, link, rng)?;
            self.layouts_object = Some(number);
            let mut object = objects.edit(number)?;
            let mut zap = ZapEdit::open(&mut *object)?;
            for (number, layout) in &layouts {
                let ints = layout.attrs.iter().map(|a| a.num.into()).collect();
                zap.update(&number.to_string(), Value { width: 2, ints })?;
            }
            self.layouts.values_mut().for_each(|l| l.stored = true);
        }
        self.pending = false;
        Ok(())
    }
}

/// The object below the master node: the existing one, or a new ZAP.
#[doc(alias = "zap_create_link")]
fn linked(
    objects: &dyn Objects,
    master: u64,
    known: Option<u64>,
    (name, kind): (&str, ObjectType),
    rng: &mut Rng,
) -> Result<u64> {
    if let Some(number) = known {
        return Ok(number);
    }
    let number = objects.create(&NewObject::plain(kind, ondisk::MIN_BLOCK_SIZE))?;
    let mut object = objects.edit(number)?;
    ZapEdit::create(&mut *object, &NewZap { salt: rng.next_u64(), ..NewZap::default() })?;
    let mut master = objects.edit(master)?;
    ZapEdit::open(&mut *master)?.insert(name, number)?;
    Ok(number)
}
