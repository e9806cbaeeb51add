//! Aquifer room `crypt`.
