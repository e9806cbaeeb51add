//! The text of a block pointer, as zdb prints it.

use std::fmt;

use crate::{Blkptr, ChecksumType, CompressType};

impl Blkptr {
    /// "encrypted", "authenticated", "indirect-MAC" or "unencrypted".
    pub fn crypt_name(&self) -> &'static str {
        if self.is_encrypted() {
            "encrypted"
        } else if self.is_authenticated() {
            "authenticated"
        } else if self.has_indirect_mac() {
            "indirect-MAC"
        } else {
            "unencrypted"
        }
    }

    fn compress_name(&self) -> &'static str {
        self.compress().map_or("UNKNOWN", CompressType::name)
    }

    fn checksum_name(&self) -> &'static str {
        self.checksum().map_or("UNKNOWN", ChecksumType::name)
    }

    fn fmt_hole(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HOLE [L{} {}] size={:x}L birth={}L",
            self.level(),
            self.object_type(),
            self.lsize(),
            self.logical_birth()
        )
    }

    // Redacted pointers print like this too, with et=2: zdb tests "embedded" first.
    fn fmt_embedded(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "EMBEDDED [L{} {}] et={} {} size={:x}L/{:x}P birth={}L",
            self.level(),
            self.object_type(),
            self.embedded_type_raw(),
            self.compress_name(),
            self.embedded_lsize(),
            self.embedded_psize(),
            self.logical_birth()
        )
    }

    fn fmt_block(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, dva) in self.dvas().enumerate() {
            write!(f, "DVA[{i}]=<{}:{:x}:{:x}> ", dva.vdev, dva.offset, dva.asize)?;
        }
        if self.is_encrypted() {
            write!(f, "salt={:x} iv={:x}:{:x} ", self.crypt_salt(), self.crypt_iv1(), self.crypt_iv2())?;
        }
        write!(f, "[L{} {}] ", self.level(), self.object_type())?;
        write!(
            f,
            "{} {} {} {} {} {} {} ",
            self.checksum_name(),
            self.compress_name(),
            self.crypt_name(),
            if self.byteorder_is_little() { "LE" } else { "BE" },
            if self.is_gang() { "gang" } else { "contiguous" },
            if self.dedup() { "dedup" } else { "unique" },
            ["zero", "single", "double", "triple"].get(self.ndvas()).copied().unwrap_or("triple"),
        )?;
        write!(
            f,
            "size={:x}L/{:x}P birth={}L/{}P fill={} cksum=",
            self.lsize(),
            self.psize(),
            self.logical_birth(),
            self.physical_birth(),
            self.fill()
        )?;
        self.fmt_cksum(f)
    }

    fn fmt_cksum(&self, f: &mut impl fmt::Write) -> fmt::Result {
        let [a, b, c, d] = self.checksum_words();
        write!(f, "{a:016x}:{b:016x}:{c:016x}:{d:016x}")
    }

    /// The short form that `zdb -ddddd` of OpenZFS 2.4 prints below "Indirect blocks": `all_copies` at six d's, `G` behind the
    /// address of a gang header (2.3 prints none).
    #[doc(alias = "snprintf_blkptr_compact")]
    pub fn compact(&self, all_copies: bool) -> String {
        use fmt::Write;
        let mut out = String::new();
        if self.is_embedded() {
            return format!(
                "EMBEDDED et={} {:x}L/{:x}P B={}",
                self.embedded_type_raw(),
                self.embedded_lsize(),
                self.embedded_psize(),
                self.logical_birth()
            );
        }
        if self.is_hole() {
            // zdb prints the first address even of a hole, unless it prints exactly those in use.
            let head = if all_copies { "" } else { "0:0:0 " };
            return format!("{head}{:x}L B={}", self.lsize(), self.logical_birth());
        }
        let copies = if all_copies { usize::MAX } else { 1 };
        for dva in self.dvas().take(copies) {
            // Writing to a String can't fail.
            let gang = if dva.gang { "G" } else { "" };
            let _ = write!(out, "{}:{:x}:{:x}{gang} ", dva.vdev, dva.offset, dva.asize);
        }
        let _ = write!(
            out,
            "{:x}L/{:x}P F={} B={}/{} cksum=",
            self.lsize(),
            self.psize(),
            self.fill(),
            self.logical_birth(),
            self.physical_birth()
        );
        let _ = self.fmt_cksum(&mut out);
        out
    }
}

/// Exactly the one-line text of `snprintf_blkptr` of OpenZFS 2.3.
impl fmt::Display for Blkptr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_hole() {
            self.fmt_hole(f)
        } else if self.is_embedded() {
            self.fmt_embedded(f)
        } else {
            self.fmt_block(f)
        }
    }
}

impl fmt::Debug for Blkptr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dva;

    #[test]
    fn gang_headers_are_marked_in_the_short_form() {
        let mut bp = Blkptr::hole(512, crate::ObjectType::PLAIN_FILE_CONTENTS, 0, 0);
        let place = Dva { vdev: 1, offset: 0x2000, asize: 0x400, ..Dva::default() };
        bp.set_dvas(&[Dva { gang: true, ..place }, place]);
        bp.set_births(7, 7);
        assert!(bp.compact(true).starts_with("1:2000:400G 1:2000:400 200L/"), "{}", bp.compact(true));
    }
}
