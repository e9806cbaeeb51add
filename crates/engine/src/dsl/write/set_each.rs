//! Properties of several datasets in one task.

use super::Tasks;
use super::props::SettingSource;
use crate::dsl::props::PropValue;
use crate::error::{Error, Result};

impl Tasks<'_> {
    /// As [`Self::set`] for several datasets. Returns those that refuse, which stay as they are, with the reason.
    pub fn set_each(
        &self,
        names: &[String],
        settings: &[(&str, Option<PropValue>)],
        source: SettingSource,
    ) -> Result<Vec<(String, Error)>> {
        let (mut refused, mut changed) = (Vec::new(), Vec::new());
        for name in names {
            match self.settable(name, settings, source) {
                Ok(found) => {
                    self.put(name, &found, settings, source)?;
                    changed.push(found.dir);
                }
                Err(e) => refused.push((name.clone(), e)),
            }
        }
        match changed.as_slice() {
            [] => {}
            [dir] => self.datasets.refresh_below(*dir, self.at.hooks)?,
            _ => self.datasets.refresh_policies(self.at.hooks)?,
        }
        Ok(refused)
    }
}
