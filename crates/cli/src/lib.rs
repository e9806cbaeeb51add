//! Aquifer room `cli`.
