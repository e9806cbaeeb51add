//! Aquifer room `nvpair`.
