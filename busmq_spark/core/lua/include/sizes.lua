-- sizes(noted, first, last, values, from, step) -> text, bytes: what the field `sizes` of the metadata must hold, now that the ids first..last are appended,
-- whose values begin at values[from], each step (1 where it is not given) behind the one before, and the bytes of these. From it a reader computes how many
-- messages fit one reply before it has read any of them. noted: what the field holds.
-- sizes = since:upto:longest:giant:giants. All of since..upto was noted; messages of peers, which note nothing, never count as known: after them
-- since starts again. giant is the newest of them over 64 KB (0: none), longest the bytes of the longest but for giants, giants that of the longest.
local function sizes(noted, first, last, values, from, step)
  local since, upto, longest, giants = string.match(noted or '', '^(%d+):(%d+):(%d+):(%d+:%d+)$')
  if tonumber(upto) ~= first - 1 then since, longest, giants = string.format('%.0f', first), 0, '0:0' end
  local bytes = 0
  longest, step = tonumber(longest), step or 1
  for i = 0, last - first do
    local size = #values[from + i * step]
    bytes = bytes + size
    if size > 65536 then
      giants = string.format('%.0f:%d', first + i, math.max(string.match(giants, '%d+$'), size))
    elseif size > longest then
      longest = size
    end
  end
  return string.format('%s:%.0f:%d:%s', since, last, longest, giants), bytes
end
