//! Aquifer room `engine`.
