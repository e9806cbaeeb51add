//! Aquifer room `raidz-math`.
