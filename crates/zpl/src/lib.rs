//! Aquifer room `zpl`.
