//! OpenZFS's formats, made from plain rows.
