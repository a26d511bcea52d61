//! Raw files as a sequence of chunks.
//!
//! A chunk is a run of complete rows: about [`CHUNK_BYTES`] of text, or [`PARQUET_CHUNK_ROWS`] rows. Where chunks
//! begin follows from the files alone, never from threads, memory or an interruption: sums over rows are formed
//! chunk by chunk, and a run that goes on after a crash must find the same chunks.

mod files;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
mod text_file;

use std::sync::Arc;

use campanile_spec::data::{SourceSpec, Split};
use serde::{Deserialize, Serialize};

use crate::{
    decode::{Decoded, Decoder},
    error::{DataError, RowUnit},
    text::{self, TextLayout},
    value::Raw,
};
pub(crate) use files::{InputFile, resolve};
use text_file::TextFile;

/// Text in a chunk, about: it stays in the second-level cache while it is decoded.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;

/// The longest record of text.
pub(crate) const RECORD_BYTES_MAX: usize = 1 << 20;

/// Rows in a chunk of a Parquet file.
#[cfg(feature = "parquet")]
pub(crate) const PARQUET_CHUNK_ROWS: usize = 2048;

/// A place between two chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Position {
    /// The file.
    pub file: usize,
    /// Bytes of decompressed text, or rows of a Parquet file, before this place.
    pub offset: u64,
}

/// A run of complete rows.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub file: usize,
    pub split: Split,
    /// Where the next chunk starts.
    pub next: Position,
    /// Bytes of all files up to the end of this chunk, compressed as they are.
    pub bytes_done: u64,
    /// Lines before the chunk's first one that are no rows: a header, for the first chunk of a CSV file.
    pub header_lines: u64,
    pub body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    Text {
        bytes: Vec<u8>,
        layout: Arc<TextLayout>,
    },
    #[cfg(feature = "parquet")]
    Parquet(parquet::ParquetRows),
}

impl Chunk {
    /// What its rows are counted in.
    pub fn unit(&self) -> RowUnit {
        match self.body {
            Body::Text { .. } => RowUnit::Line,
            #[cfg(feature = "parquet")]
            Body::Parquet(_) => RowUnit::Row,
        }
    }

    /// Decodes every row.
    pub fn decode(&self, decoder: &Decoder, out: &mut Decoded) {
        match &self.body {
            Body::Text { bytes, layout } => text::decode(bytes, layout, decoder, self.split, out),
            #[cfg(feature = "parquet")]
            Body::Parquet(rows) => rows.decode(decoder, self.split, out),
        }
    }
}

/// Reads chunks, one after another.
pub(crate) struct ChunkReader<'a> {
    files: &'a [InputFile],
    source: &'a SourceSpec,
    decoder: &'a Decoder,
    position: Position,
    open: Option<Open>,
    /// Bytes of the files before the open one.
    bytes_before: u64,
    /// Buffers of chunks that are done with.
    spare: Vec<Vec<u8>>,
}

enum Open {
    Text(Box<TextFile>),
    #[cfg(feature = "parquet")]
    Parquet(Box<parquet::ParquetFile>),
}

impl<'a> ChunkReader<'a> {
    /// Starts at `position`.
    pub fn new(
        files: &'a [InputFile],
        source: &'a SourceSpec,
        decoder: &'a Decoder,
        position: Position,
    ) -> ChunkReader<'a> {
        let bytes_before = files[..position.file.min(files.len())].iter().map(|file| file.bytes).sum();
        ChunkReader { files, source, decoder, position, open: None, bytes_before, spare: Vec::new() }
    }

    /// The next chunk, or none at the end of the last file.
    pub fn next(&mut self) -> Result<Option<Chunk>, DataError> {
        while let Some(file) = self.files.get(self.position.file) {
            if self.open.is_none() {
                self.open = Some(self.open_at(file, self.position.offset)?);
            }
            let spare = self.spare.pop().unwrap_or_default();
            let taken = match &mut self.open {
                Some(Open::Text(text)) => text.next(spare)?,
                #[cfg(feature = "parquet")]
                Some(Open::Parquet(parquet)) => parquet.next()?,
                None => unreachable!("the file was just opened"),
            };
            let Some(taken) = taken else {
                self.open = None;
                self.bytes_before += file.bytes;
                self.position = Position { file: self.position.file + 1, offset: 0 };
                continue;
            };
            let file_index = self.position.file;
            self.position.offset = taken.end;
            return Ok(Some(Chunk {
                file: file_index,
                split: file.split,
                next: self.position,
                bytes_done: self.bytes_before + taken.bytes_done.min(file.bytes),
                header_lines: taken.header_lines,
                body: taken.body,
            }));
        }
        Ok(None)
    }

    /// Takes a chunk's memory back.
    pub fn recycle(&mut self, chunk: Chunk) {
        if let Body::Text { bytes, .. } = chunk.body
            && self.spare.len() < 64
        {
            self.spare.push(bytes);
        }
    }

    fn open_at(&self, file: &InputFile, offset: u64) -> Result<Open, DataError> {
        match self.source {
            #[cfg(feature = "parquet")]
            SourceSpec::Parquet => parquet::ParquetFile::open(file, self.decoder, offset)
                .map(|file| Open::Parquet(Box::new(file))),
            #[cfg(not(feature = "parquet"))]
            SourceSpec::Parquet => Err(DataError::NoParquet { path: file.path.clone() }),
            SourceSpec::Csv { delimiter, quotes } => {
                let delimiter = one_byte(*delimiter)?;
                TextFile::csv(file, (delimiter, *quotes), self.decoder, offset)
                    .map(|file| Open::Text(Box::new(file)))
            }
            SourceSpec::CriteoTsv => {
                TextFile::criteo(file, self.decoder, offset).map(|file| Open::Text(Box::new(file)))
            }
            SourceSpec::Synthetic(_) => unreachable!("a synthetic world is not read from files"),
        }
    }
}

/// What a file gave.
struct Taken {
    body: Body,
    /// Offset of the next chunk in this file.
    end: u64,
    /// Bytes of this file that have been read.
    bytes_done: u64,
    header_lines: u64,
}

fn one_byte(delimiter: char) -> Result<u8, DataError> {
    let byte =
        u8::try_from(delimiter).ok().filter(|byte| byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r'));
    byte.ok_or_else(|| DataError::Unsupported {
        column: "delimiter".into(),
        reason: format!("`{}` cannot separate cells; use one ASCII character", delimiter.escape_default()),
    })
}

/// Refuses files that do not go together, before the first of them is read.
pub(crate) fn check(files: &[InputFile], source: &SourceSpec, decoder: &Decoder) -> Result<(), DataError> {
    match source {
        #[cfg(feature = "parquet")]
        SourceSpec::Parquet => parquet::check_units(files, decoder),
        _ => {
            let _ = (files, decoder);
            Ok(())
        }
    }
}

/// Column names for an error: the first ten.
pub(crate) fn list_names(names: &[String]) -> String {
    let shown = |name: &String| format!("`{}`", Raw::Text(name.as_bytes()).shown());
    let shown: Vec<String> = names.iter().take(10).map(shown).collect();
    let more = if names.len() > 10 { format!(" and {} more", names.len() - 10) } else { String::new() };
    if shown.is_empty() { "no columns".into() } else { format!("{}{more}", shown.join(", ")) }
}
