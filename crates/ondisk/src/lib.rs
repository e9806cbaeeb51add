//! Aquifer room `ondisk`.
