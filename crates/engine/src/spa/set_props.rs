//! Setting properties of a pool.
//!
//! Most are kept in a ZAP of their own, `comment` and `compatibility` in the configuration, so that they can be read
//! before the pool is opened. Source: `spa_sync_props`, spa.c, OpenZFS 2.3.

use ondisk::ObjectType;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};

use super::Spa;
use super::autotrim::AUTOTRIM;
use super::growth::AUTOEXPAND;
use super::shared::QUOTA;
use super::subjects::PoolProps;
use crate::dmu::Tx;
use crate::dsl::props::PropValue;
use crate::dsl::write::Hooks;
use crate::error::Result;
use crate::zap::{Value, Zap, ZapEdit};

impl PoolProps<'_> {
    /// Sets properties (syncing context). The caller checks the values.
    #[doc(alias = "spa_sync_props")]
    pub fn set(self, settings: &[(String, PropValue)], tx: &Tx) -> Result<()> {
        for (name, value) in settings {
            let text = value.text().filter(|text| !text.is_empty()).map(str::to_owned);
            match name.as_str() {
                "comment" => self.spa.config.lock().change_facts(|facts| facts.comment = text),
                "compatibility" => self.spa.config.lock().change_facts(|facts| facts.compatibility = text),
                _ => set_prop(self.spa, name, value, tx)?,
            }
            if let (QUOTA, PropValue::Number(quota)) = (name.as_str(), value) {
                self.spa.shared.set_quota(*quota);
            }
            if name == AUTOTRIM {
                self.spa.free_space().set_autotrim(*value != PropValue::Number(0));
            }
            if name == AUTOEXPAND {
                self.spa.vdevs().set_autoexpand(*value != PropValue::Number(0));
                self.spa.vdevs().measure_all(tx)?;
            }
            let shown = match value {
                PropValue::Number(n) => n.to_string(),
                PropValue::Text(text) => text.clone(),
            };
            self.spa.log("set", "", 0, &format!("{name}={shown}"), tx)?;
        }
        Ok(())
    }
}

fn set_prop(spa: &Spa, name: &str, value: &PropValue, tx: &Tx) -> Result<()> {
    let view = spa.mos.view();
    let known = Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?.u64(mos::PROPS)?;
    let number = match known.filter(|number| *number != 0) {
        Some(number) => number,
        None => {
            let number = spa.datasets.at(tx, spa).create_zap(ObjectType::POOL_PROPS)?;
            let directory = spa.mos.handle(MOS_DIRECTORY_OBJECT)?;
            ZapEdit::open(&mut directory.edit(tx))?.insert(mos::PROPS, number)?;
            number
        }
    };
    let value = match value {
        PropValue::Number(n) => Value::from(*n),
        PropValue::Text(text) => Value::from(text.as_str()),
    };
    let zap = spa.mos.handle(number)?;
    ZapEdit::open(&mut zap.edit(tx))?.update(name, value)
}
