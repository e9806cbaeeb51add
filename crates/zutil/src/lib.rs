//! Aquifer room `zutil`.
