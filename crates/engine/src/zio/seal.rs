//! New blocks of encrypted datasets: encrypted, or given a MAC.
//!
//! A block is sealed as it will lie on disk: after compression, before its checksum is made. An indirect
//! block's MAC covers the authenticated fields of its pointers, before compression, and needs no key. Each
//! write of a block uses a new IV, also when it overwrites a block that the same txg wrote before: two
//! plaintexts never share an IV. With dedup salt and IV follow from the plaintext instead.
//!
//! Nothing leaves here unsealed: without a key the write fails.
//!
//! Source: `zio_encrypt`, zio.c, OpenZFS 2.3.

use crypt::{BlockParams, ByteOrder, CURRENT_VERSION};
use ondisk::{Blkptr, ObjectType};
use stdx::{AlignedBuf, Buf};

use super::Zio;
use super::dedup::Dedup;
use super::write::WriteRequest;
use crate::error::Result;
use crate::types::Bookmark;

/// Seals `data`, the stored bytes of a block if its pointer is marked as encrypted or authenticated. Returns
/// the bytes to write and the MAC's words for the pointer's checksum.
pub(super) fn seal(zio: &Zio, request: &WriteRequest, bp: &mut Blkptr, data: Buf) -> Result<(Buf, [u64; 2])> {
    if !bp.uses_crypt() {
        return Ok((data, [0; 2]));
    }
    if let Some(params) = request.stored.and_then(|stored| stored.crypt) {
        return Ok((data, keep(bp, &params)));
    }
    if bp.level() > 0 {
        let mac = crypt::indirect_mac(CURRENT_VERSION, ByteOrder::of_prop(bp.prop()), &request.data);
        return Ok((data, words(bp, mac)));
    }
    if bp.is_encrypted() {
        match request.props.dedup {
            Dedup::Off => zio.draw_crypt_params(request.at.objset, bp)?,
            Dedup::On | Dedup::Verify | Dedup::Later => {
                zio.derive_crypt_params(request.at.objset, bp, &data)?
            }
        }
    }
    let mut own = data.into_owned();
    let mac = zio.seal_block(bp, request.at, &mut own)?;
    let mac = if bp.object_type() == ObjectType::OBJSET { [0; 2] } else { words(bp, mac) };
    Ok((own.into(), mac))
}

/// Stores the encryption parameters of an already sealed block in its pointer; returns the MAC's words for
/// the checksum.
fn keep(bp: &mut Blkptr, params: &BlockParams) -> [u64; 2] {
    let (salt_iv1, iv2, mac) = params.to_bp_words(bp.prop());
    if bp.is_encrypted() {
        bp.set_crypt_params(salt_iv1, iv2);
    }
    if bp.object_type() == ObjectType::OBJSET { [0; 2] } else { mac }
}

fn words(bp: &Blkptr, mac: crypt::Mac) -> [u64; 2] {
    let (_, _, words) = BlockParams { mac, ..BlockParams::default() }.to_bp_words(bp.prop());
    words
}

fn set_params(bp: &mut Blkptr, (salt, iv): (crypt::Salt, crypt::Iv)) {
    let (salt_iv1, iv2, _) = BlockParams { salt, iv, ..BlockParams::default() }.to_bp_words(bp.prop());
    bp.set_crypt_params(salt_iv1, iv2);
}

impl Zio {
    /// Puts a new salt and IV into the pointer of an encrypted block of `objset`.
    pub(crate) fn draw_crypt_params(&self, objset: u64, bp: &mut Blkptr) -> Result<()> {
        let params = self.keys()?.draw(objset)?;
        set_params(bp, params);
        Ok(())
    }

    /// Puts the salt and IV that follow from its stored bytes into the pointer of a block of `objset`: equal blocks under
    /// one key become equal ciphertext.
    #[doc(alias = "zio_crypt_generate_iv_salt_dedup")]
    fn derive_crypt_params(&self, objset: u64, bp: &mut Blkptr, data: &[u8]) -> Result<()> {
        let params = self.keys()?.derive(objset, data)?;
        set_params(bp, params);
        Ok(())
    }

    /// Encrypts or authenticates the bytes of a block that has its salt and IV.
    pub(crate) fn seal_block(&self, bp: &Blkptr, at: Bookmark, data: &mut AlignedBuf) -> Result<crypt::Mac> {
        self.keys()?.seal_block(bp, at, data)
    }
}
