//! Aquifer room `compress`.
