//! Aquifer room `testkit`.
