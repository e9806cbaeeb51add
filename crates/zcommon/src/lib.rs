//! Aquifer room `zcommon`.
