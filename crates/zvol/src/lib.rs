//! Aquifer room `zvol`.
