-- sizes(noted, first, last, values, from, step) -> text, bytes: the new value of the field `sizes`
-- of the metadata after the ids first..last were appended, and the bytes of their values. The
-- values begin at values[from] and are step items apart (1 where it is not given). From it a reader
-- computes how many messages fit one reply before it has read any of them. noted: the present value
-- of the field.
-- sizes = since:upto:longest:giant:giants. All of since..upto was noted; messages of peers, which
-- note nothing, never count as known: after them since starts again. giant is the newest of them
-- over 64 KB (0: none), longest the bytes of the longest but for giants, giants that of the
-- longest.
local function sizes(noted, first, last, values, from, step)
  local since, upto, longest, giants = string.match(noted or '', '^(%d+):(%d+):(%d+):(%d+:%d+)$')
  if tonumber(upto) ~= first - 1 then
    since, longest, giants = string.format('%.0f', first), 0, '0:0'
  end
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
