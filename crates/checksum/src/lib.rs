//! Aquifer room `checksum`.
